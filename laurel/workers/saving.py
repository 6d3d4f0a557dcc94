"""A role's part of a checkpoint on every rank: rehearsed, copied at a step's end, written while training goes on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from laurel.learner.disk import Entry, probe
from laurel.learner.shards import Snapshot

Trained = Literal["actor", "critic"]


@dataclass(frozen=True)
class Rehearsal:
    """What one rank would write of a role, and the main memory that its node has left for a copy of it."""

    rank: int
    host: str
    bytes: int
    memory: int


class Saved(Protocol):
    """A learner, as saving sees it."""

    @property
    def snapshot_bytes(self) -> int: ...

    def snapshot(self, *, copied: bool) -> Snapshot: ...


class Saving:
    """One rank's snapshots between the moment that they are taken and the moment that they are on disk."""

    def __init__(self) -> None:
        self._taken: dict[Trained, Snapshot] = {}

    def take(self, role: Trained, learner: Saved, *, copied: bool) -> None:
        self._taken[role] = learner.snapshot(copied=copied)

    def write(self, role: Trained, folder: Path) -> dict[str, Entry]:
        """Each file's size and checksum, by its path within ``folder``. Raises SaveError."""
        return self._taken.pop(role).write(folder)


def rehearse(rank: int, host: str, learner: Saved, folder: Path) -> Rehearsal:
    """Leave a small file of this rank in ``folder``. Raises SaveError if it may not, or the disk does not take it."""
    probe(folder / probe_name(rank))
    return Rehearsal(rank, host, learner.snapshot_bytes, free_memory())


def probe_name(rank: int) -> str:
    return f"rank-{rank:05d}"


def free_memory(meminfo: Path = Path("/proc/meminfo"), group: Path = Path("/sys/fs/cgroup")) -> int:
    """Bytes of main memory that this process may still take: the machine's, within its control group's limit.

    Where neither can be read nothing is known to be free.
    """
    found = 0
    for line in meminfo.read_text().splitlines() if meminfo.is_file() else ():
        if line.startswith("MemAvailable:"):
            found = int(line.split()[1]) * 1024
    limit, used = (group / "memory.max", group / "memory.current")
    if limit.is_file() and used.is_file() and limit.read_text().strip() != "max":
        found = min(found, max(0, int(limit.read_text()) - int(used.read_text())))
    return found


def short_of_memory(rehearsals: Sequence[Rehearsal], share: float = 0.5) -> str | None:
    """The node, in words, where copies of all roles would take more than ``share`` of the free memory; None if none."""
    for host in dict.fromkeys(one.host for one in rehearsals):
        own = [one for one in rehearsals if one.host == host]
        needed, free = sum(one.bytes for one in own), min(one.memory for one in own)
        if needed > share * free:
            return f"copies of {needed / 2**30:.2f} GiB on {host}, which has {free / 2**30:.2f} GiB free"
    return None
