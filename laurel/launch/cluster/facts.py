"""What a node tells the head about itself before it joins. Torch is not imported."""

from __future__ import annotations

import os
import platform
import shutil
import socket
import subprocess
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from laurel.config.machine import visible_gpus
from laurel.workers.session import usable_cores

PACKAGES = ("ray", "torch", "transformers", "laurel")


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
        versions={"python": platform.python_version(), **{name: _version(name) for name in PACKAGES}},
        gpus=visible_gpus() if gpus is None else gpus,
        gpu_ids=gpu_ids(),
        cores=usable_cores(),
        shared_memory=shutil.disk_usage("/dev/shm").free if os.path.isdir("/dev/shm") else 0,
    )


def gpu_ids() -> tuple[str, ...]:
    """UUIDs of the GPUs that a process started here would see."""
    tool, visible = shutil.which("nvidia-smi"), os.environ.get("CUDA_VISIBLE_DEVICES")
    if tool is None or visible == "":
        return ()
    command = [tool, "--query-gpu=uuid", "--format=csv,noheader", *([f"--id={visible}"] if visible else [])]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ()
    return tuple(line.strip() for line in answer.stdout.splitlines() if line.strip()) if answer.returncode == 0 else ()


def misfit(node: Facts, head: Facts) -> str | None:
    """Why a node cannot be part of the head's cluster: another Python (to the minor version, as Ray's pickles need) or
    another version of a package. None if it can."""
    wrong = []
    for name, own in head.versions.items():
        theirs = node.versions.get(name, "none")
        same = theirs == own if name != "python" else theirs.rpartition(".")[0] == own.rpartition(".")[0]
        if not same:
            wrong.append(f"{name} {theirs} (the head has {own})")
    return f"{', '.join(wrong)}; install the same environment on every node" if wrong else None


def shared_gpus(node: Facts, others: dict[str, Facts]) -> str | None:
    """Whether a GPU of this node was reported by another: two nodes of the job are one machine."""
    for name, other in others.items():
        twice = sorted(set(node.gpu_ids) & set(other.gpu_ids))
        if twice:
            return (
                f"its GPU {twice[0]} is also {name}'s: both run on one machine; ask for one task a node, or give each "
                "its own CUDA_VISIBLE_DEVICES"
            )
    return None


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"
