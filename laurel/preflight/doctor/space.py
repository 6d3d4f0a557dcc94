"""Room on a node: memory, /dev/shm and disks."""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from laurel.config.machine import available_memory
from laurel.preflight.doctor.finding import Finding, Severity

GIB = 2**30
SHM_LEAST = 64 << 20
"""Bytes of /dev/shm below which whatever lies there fails: all of what a container gets if nobody says more."""
SHM_FAIR = 512 << 20
MEMORY_LEAST = GIB
DISK_LEAST, DISK_FAIR = 64 << 20, GIB
RAY_STOPS = 0.95  # of a disk: beyond, Ray refuses to write objects there
BYTES_OF_A_PARAMETER = 12  # in a checkpoint: fp32 weight and two moments


@dataclass(frozen=True)
class Room:
    """Bytes."""

    total: int
    free: int

    @property
    def used_part(self) -> float:
        return 1 - self.free / self.total if self.total else 1.0


@dataclass(frozen=True)
class Space:
    """``shm`` is None where there is no /dev/shm. ``store`` is the folder of Ray's object store, ``store_bytes`` how
    large it may become. ``disks`` by what lies there; ``ray`` is Ray's own folder."""

    memory: Room
    shm: Room | None
    store: str
    store_bytes: int
    disks: Mapping[str, Room]


def look(folders: Mapping[str, str], *, store: str, store_bytes: int) -> Space:
    """``folders`` by what lies there; one that does not exist counts as its nearest parent that does."""
    return Space(
        memory=memory(),
        shm=room("/dev/shm") if os.path.isdir("/dev/shm") else None,
        store=store,
        store_bytes=store_bytes,
        disks={name: room(folder) for name, folder in folders.items()},
    )


def room(folder: str | Path) -> Room:
    """Of the disk that holds ``folder``, or would."""
    place = Path(folder).expanduser().absolute()
    while not place.exists():
        place = place.parent
    usage = shutil.disk_usage(place)
    return Room(usage.total, usage.free)


def memory(group: Path = Path("/sys/fs/cgroup")) -> Room:
    """Memory of this machine, or of this process's control group where that is less."""
    total, free = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), available_memory()
    try:
        limit = int((group / "memory.max").read_text())
        used = int((group / "memory.current").read_text())
        cached = sum(
            int(line.split()[1])
            for line in (group / "memory.stat").read_text().splitlines()
            if line.startswith("inactive_file ")
        )
    except (OSError, ValueError):  # no such group, or "max": no limit
        return Room(total, free)
    return Room(min(total, limit), min(free, max(0, limit - used + cached)))


def judge(nodes: Mapping[str, Space], *, parameters: int | None = None, nccl: Collection[str] = ()) -> list[Finding]:
    """``parameters`` of the model that each node loads, None where not known; ``nccl``: nodes with several GPUs, which
    speak with each other through /dev/shm."""
    found: list[Finding] = []
    for name, space in nodes.items():
        found += _shm(name, space, nccl=name in nccl) + _memory(name, space.memory, parameters)
        for what, disk in space.disks.items():
            found += _disk(name, what, disk)
    return found


def _shm(name: str, space: Space, *, nccl: bool) -> list[Finding]:
    needed = nccl or space.store.startswith("/dev/shm")
    if space.shm is None:
        cure = "mount it: in a container --shm-size=16g, on a machine `mount -t tmpfs tmpfs /dev/shm`"
        return [Finding("/dev/shm", "error" if needed else "warning", name, "there is no /dev/shm", cure)]
    total, free = space.shm.total, space.shm.free
    cure = (
        "remove what fills it (`ls -lS /dev/shm`), or make it larger: in a container --shm-size=16g (Kubernetes: an "
        "emptyDir of medium Memory), on a machine `mount -o remount,size=16g /dev/shm`; then start Ray there anew"
    )
    said = f"{_size(free)} of {_size(total)} are free in /dev/shm"
    if free < SHM_LEAST:
        if needed:
            users = " and ".join(["Ray's objects"] * space.store.startswith("/dev/shm") + ["NCCL"] * nccl)
            what = f"{said}, which is too little for {users}: ranks would die of a bus error"
            return [Finding("/dev/shm", "error", name, what, cure)]
        what = f"{said}, so that Ray's objects go to a disk, and several GPUs cannot speak with each other"
        return [Finding("/dev/shm", "warning", name, what, cure)]
    if needed and free < min(space.store_bytes, SHM_FAIR):
        what = f"{said}, and Ray's object store may grow to {_size(space.store_bytes)} there"
        return [Finding("/dev/shm", "warning", name, what, cure)]
    if space.store and not space.store.startswith("/dev/shm"):
        what = f"Ray keeps its objects in {space.store}, on a disk, since /dev/shm was too small when it started"
        lower = "start Ray with --object-store-memory below the size of /dev/shm, which Laurel does in its own, or "
        return [Finding("/dev/shm", "warning", name, what, lower + "make /dev/shm larger")]
    return []


def _memory(name: str, memory: Room, parameters: int | None) -> list[Finding]:
    said = f"{_size(memory.free)} of {_size(memory.total)} of memory are free"
    cure = "end what holds it (`ps aux --sort -rss | head`), or give the node or its container more"
    if parameters and memory.free < 4 * parameters:
        what = f"{said}, and the model's weights alone take {_size(4 * parameters)} in fp32"
        return [Finding("memory", "error", name, what, cure)]
    if memory.free < MEMORY_LEAST:
        what = f"{said}, and a rank's process takes about {_size(MEMORY_LEAST)} without its model"
        return [Finding("memory", "warning", name, what, cure)]
    return []


def _disk(name: str, what: str, disk: Room) -> list[Finding]:
    if disk.free < DISK_FAIR:
        said = f"the disk of {what} has {_size(disk.free)} of {_size(disk.total)} free"
        severity: Severity = "error" if disk.free < DISK_LEAST else "warning"
        return [Finding("disk", severity, name, said, "free some, or name another folder")]
    if what == RAY and disk.used_part > RAY_STOPS:
        said = f"the disk of {what} is {disk.used_part:.0%} full; beyond {RAY_STOPS:.0%} Ray writes no objects to it"
        return [Finding("disk", "warning", name, said, "free some, or start Ray with another --temp-dir")]
    return []


RAY = "Ray's folder"


def judge_checkpoints(folder: str, disk: Room, *, parameters: Iterable[int]) -> list[Finding]:
    """Whether checkpoints of models with so many parameters fit where they go; a new one is whole before an old one is
    removed."""
    one = sum(BYTES_OF_A_PARAMETER * count for count in parameters)
    if not one or disk.free >= 2 * one:
        return []
    severe = disk.free < one
    what = f"{folder} has {_size(disk.free)} free, and one checkpoint takes about {_size(one)}"
    cure = "free some, set trainer.default_local_dir to a larger disk, or keep fewer (trainer.max_actor_ckpt_to_keep)"
    return [Finding("checkpoints", "error" if severe else "warning", "", what, cure)]


def sizes(room: Room) -> str:
    """Example: ``60.0 of 64.0 GiB``."""
    if room.total >= GIB:
        return f"{room.free / GIB:.1f} of {room.total / GIB:.1f} GiB"
    return f"{room.free / 2**20:.0f} of {room.total / 2**20:.0f} MiB"


def _size(count: float) -> str:
    return f"{count / GIB:.1f} GiB" if count >= GIB else f"{count / 2**20:.0f} MiB"
