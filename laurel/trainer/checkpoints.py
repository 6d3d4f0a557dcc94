"""What a checkpoint of a run holds, and going on from one."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from laurel.config.tree import Config, Trainer
from laurel.learner.checkpoint import MANIFEST, damage, newest_checkpoint
from laurel.rollout.filter_groups import NothingToLearn
from laurel.trainer.report import say
from laurel.trainer.roles import Roles
from laurel.trainer.run import Run
from laurel.trainer.run_state import RunState
from laurel.trainer.stop import Stopped
from laurel.types import LaurelError


def save_checkpoint(run: Run) -> None:
    """Models, optimizers and run state of this step, whole or not at all; training goes on while it is written."""
    with run.timer("save_checkpoint"):
        run.saver.save(run.state)
    run.report.saving(run.state.step)


@contextmanager
def kept_if_stopped(run: Run) -> Iterator[None]:
    """Around all steps: if somebody asks for the end, what is done is saved, and Stopped is raised."""
    try:
        with run.stop.at_checks():
            yield
    except KeyboardInterrupt as error:
        if not run.stop.saves:
            raise
        if run.state.step > 0:
            run.saver.complete(run.state)
        raise Stopped(
            f"stopped early by {run.stop.requested} after step {run.state.step} of {run.total_steps}; "
            + ("all of it is saved, and the same command goes on" if run.state.step else "start it again to train")
        ) from error


@contextmanager
def kept_if_nothing_to_learn(run: Run) -> Iterator[None]:
    """Around a step: if it ends since no group teaches anything, the steps before it are saved first, as they stood.
    If sampling was interrupted, the state is that of the steps before, too.

    Going on from there, with a larger algorithm.filter_groups.max_num_gen_batches say, draws the same prompts again.
    """
    step, consumed = run.state.step, run.state.consumed
    try:
        yield
    except KeyboardInterrupt:
        if run.stop.saves:
            run.state.step, run.state.consumed = step, consumed
        raise
    except NothingToLearn:
        run.state.step, run.state.consumed = step, consumed
        if step > 0:
            run.saver.complete(run.state)
        raise


def find_checkpoint(trainer: Trainer, root: Path) -> Path | None:
    """The checkpoint to go on from, as trainer.resume_mode says; None starts anew."""
    if trainer.resume_mode == "disable":
        return None
    if trainer.resume_mode == "resume_path":
        folder = Path(trainer.resume_from_path or "").expanduser().absolute()
        wrong = damage(folder)
        if wrong is not None:
            raise LaurelError(
                f"trainer.resume_from_path={trainer.resume_from_path!r} cannot be loaded: {wrong}; "
                "name a whole global_step_N folder, or use trainer.resume_mode=auto"
            )
        return folder
    found = newest_checkpoint(root)
    for note in found.notes:
        say(note)
    if found.folder is None and found.damaged:
        lost = "\n".join(f"  {note}" for note in found.notes)
        raise LaurelError(
            f"no checkpoint in {root} can be loaded:\n{lost}\nMend one of them, name a whole one elsewhere with "
            "trainer.resume_mode=resume_path and trainer.resume_from_path, or start anew with "
            "trainer.resume_mode=disable (or another trainer.experiment_name)"
        )
    return found.folder


def restore(folder: Path, config: Config, roles: Roles, state: RunState) -> None:
    """Load models and optimizers into ``roles`` and what else a run remembers into ``state``; say what changed."""
    say(f"going on from {folder}")
    stored = json.loads((folder / MANIFEST).read_text())["config"]
    for line in config_changes(stored, config):
        say(f"changed setting {line}")
    roles.actor.load(folder / "actor")
    roles.critic.load(folder / "critic")
    state.restore(folder)
    control = config.algorithm.kl_ctrl
    if control.type == "fixed" or stored["algorithm"]["kl_ctrl"] != control.model_dump(mode="json"):
        state.kl_coef = control.kl_coef  # what an adaptive controller arrived at holds only for its own settings


# Settings that say where things lie or how to go on: they change when a folder is moved, and training does not.
WHERE = (
    "trainer.default_local_dir",
    "trainer.validation_data_dir",
    "trainer.rollout_data_dir",
    "trainer.resume_mode",
    "trainer.max_walltime",
    "trainer.resume_from_path",
)


def config_changes(stored: Mapping[str, Any], config: Config) -> list[str]:
    """A line per setting that differs from the checkpoint's; the command line's value is the one that counts.

    Example: ``actor_rollout_ref.actor.optim.lr: 1e-06 in the checkpoint, now 1e-05 (this one counts)``.
    """
    before, now = dict(_leaves(stored)), dict(_leaves(config.model_dump(mode="json")))
    return [
        f"{key}: {before.get(key)!r} in the checkpoint, now {value!r} (this one counts)"
        for key, value in now.items()
        if before.get(key) != value and key not in WHERE
    ]


def _leaves(tree: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for name, value in tree.items():
        found += _leaves(value, f"{prefix}{name}.") if isinstance(value, Mapping) else [(prefix + name, value)]
    return found
