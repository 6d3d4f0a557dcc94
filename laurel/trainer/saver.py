"""Checkpoints written while training goes on: one at a time, rehearsed before the first step."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from laurel.config.tree import Config
from laurel.learner.checkpoint import begin_checkpoint, commit_checkpoint, discard_checkpoint, prune, step_of
from laurel.learner.disk import SaveError, free_bytes, probe
from laurel.trainer.roles import Roles, RoleWriting
from laurel.trainer.run_state import RunState
from laurel.workers.saving import probe_name, short_of_memory

MOST_FAILURES = 3
"""Saves that may fail one after the other; each is tried again after the next step, then the run ends."""
_REHEARSAL = "rehearsal.incomplete"


@dataclass
class Saver:
    """Saves ``roles`` and run state below ``root``. ``copied``: ranks write a copy, and training goes on meanwhile;
    where memory is short for that, it waits. Methods are the main thread's; one thread of its own waits for the ranks.
    """

    root: Path
    config: Config
    roles: Roles
    say: Callable[[str], None]
    copied: bool = True
    failures: int = 0
    saved_step: int | None = None
    """The newest step that is known to be saved whole."""
    _writing: threading.Thread | None = None
    _error: BaseException | None = field(default=None, repr=False)

    def rehearse(self) -> None:
        """A small file of every rank, and what a save will take of disk and memory, before any work could be lost.

        Raises SaveError if it may not be written, the disk has no room for one checkpoint, or nodes share no disk.
        """
        folder = self.root / _REHEARSAL
        probe(folder / "driver")
        try:
            found = [*self.roles.actor.rehearse(folder), *self.roles.critic.rehearse(folder)]
            for one in found:
                if not (folder / probe_name(one.rank)).is_file():
                    raise SaveError(
                        f"{self.root} is not the same folder on {one.host}, where rank {one.rank} writes its part of a "
                        "checkpoint: set trainer.default_local_dir to a folder on a disk that all nodes share"
                    )
            needed, free = sum(one.bytes for one in found), free_bytes(self.root)
        finally:
            discard_checkpoint(folder)
        if needed > free:
            raise SaveError(
                f"{self.root} has {free / 2**30:.2f} GiB free, and a checkpoint takes {needed / 2**30:.2f} GiB: make "
                "room, or set trainer.default_local_dir to a larger disk"
            )
        short = short_of_memory(found)
        self.copied = short is None
        if short is not None:
            self.say(f"training will wait while a checkpoint is written: there is no memory for {short}")

    @property
    def again(self) -> bool:
        """Whether the last save failed, so that one is due after the next step."""
        return self.failures > 0

    def save(self, state: RunState) -> None:
        """Save this step; returns when training may go on. Waits for the last save first, and raises what ended it."""
        self.finish()
        try:
            self._begin(state)
        except SaveError as error:
            self._failed(error)

    def _begin(self, state: RunState) -> None:
        folder = begin_checkpoint(self.root, state.step)
        try:
            state.save(folder)
            parts = {
                "actor": self.roles.actor.save(folder / "actor", copied=self.copied),
                "critic": self.roles.critic.save(folder / "critic", copied=self.copied),
            }
        except BaseException:
            discard_checkpoint(folder)
            raise
        self._writing = threading.Thread(target=self._write, args=(folder, parts), name="saving")
        self._writing.start()
        if not self.copied:
            self.finish()

    def _write(self, folder: Path, parts: dict[str, RoleWriting]) -> None:
        try:
            written = {f"{role}/{name}": e for role, part in parts.items() for name, e in part.files(self.say).items()}
            contents = {"config": self.config.model_dump(mode="json")}
            final = commit_checkpoint(folder, contents, written=written)
        except BaseException as error:  # raised in finish, where it is the main thread's
            discard_checkpoint(folder)
            self._error = error
            return
        self.saved_step = step_of(final)
        self.say(f"saved {final}")
        try:
            prune(self.root, self.config.trainer.max_actor_ckpt_to_keep)
        except SaveError as error:  # what was saved is good; the next save tries again
            self.say(f"old checkpoints could not be deleted: {error}")

    def finish(self) -> None:
        """Wait for the save that is going on. A disk that refuses is said; after MOST_FAILURES in a row it is raised,
        as is at once whatever else ended it."""
        if self._writing is not None:
            self._writing.join()
            self._writing = None
            error, self._error = self._error, None
            if isinstance(error, SaveError):
                self._failed(error)
            elif error is not None:
                raise error
            else:
                self.failures = 0

    def complete(self, state: RunState) -> None:
        """As ``finish``, and this step must be saved when it returns. Raises SaveError if it cannot be."""
        self.finish()
        while self.saved_step != state.step:
            self.save(state)
            self.finish()

    def close(self) -> None:
        """Wait for the save that is going on, at the end of a run that failed: an error is said, not raised."""
        if self._writing is not None:
            self._writing.join()
            self._writing = None
            if self._error is not None:
                self.say(f"the save that was going on failed: {self._error}")

    def _failed(self, error: SaveError) -> None:
        self.failures += 1
        if self.failures >= MOST_FAILURES:
            raise error
        self.say(f"SAVE FAILED ({self.failures} of {MOST_FAILURES} times): {error}. It is tried again after a step")
