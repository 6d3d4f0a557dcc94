"""What a node tells the head about itself before it joins. Torch is not imported."""

from __future__ import annotations

import os
import shutil
import socket
from dataclasses import asdict, dataclass, field
from typing import Any

from laurel.config.machine import visible_gpus
from laurel.preflight.doctor.gpus import gpu_ids, shared
from laurel.preflight.doctor.versions import differing, versions
from laurel.workers.session import usable_cores


@dataclass(frozen=True)
class Facts:
    """``gpus`` is how many a process started here would see, ``gpu_ids`` their UUIDs where the driver tells them;
    ``shared_memory`` is what is free of /dev/shm, in bytes."""

    host: str
    versions: dict[str, str]
    gpus: int
    gpu_ids: tuple[str, ...] = field(default=())
    cores: int = 1
    shared_memory: int = 0

    def sent(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def received(cls, words: dict[str, Any]) -> Facts:
        return cls(**{**words, "gpu_ids": tuple(words.get("gpu_ids", ()))})


def gather(gpus: int | None = None) -> Facts:
    """Facts of this node. ``gpus``: what the scheduler gave it, which counts more than what can be seen."""
    return Facts(
        host=socket.gethostname(),
        versions=versions(),
        gpus=visible_gpus() if gpus is None else gpus,
        gpu_ids=gpu_ids(),
        cores=usable_cores(),
        shared_memory=shutil.disk_usage("/dev/shm").free if os.path.isdir("/dev/shm") else 0,
    )


def misfit(node: Facts, head: Facts) -> str | None:
    """Why a node cannot be part of the head's cluster: another Python or another version of a package. None if it
    can."""
    wrong = differing(node.versions, head.versions, "the head")
    return f"{', '.join(wrong)}; install the same environment on every node" if wrong else None


def shared_gpus(node: Facts, others: dict[str, Facts]) -> str | None:
    """Whether a GPU of this node was reported by another: two nodes of the job are one machine."""
    return shared(node.gpu_ids, {name: other.gpu_ids for name, other in others.items()})
