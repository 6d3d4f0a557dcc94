"""GPUs of a node: what the driver shows, what Ray offers, and that none is there twice."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from laurel.preflight.doctor.finding import Finding, Severity

_GIB = 2**30
_BUSY = 2 * _GIB  # more than a driver takes for itself
_TIMEOUT_S = 15.0


@dataclass(frozen=True)
class Gpu:
    """``total`` and ``used`` are bytes of its memory."""

    uuid: str
    name: str
    total: int
    used: int
    driver: str

    @property
    def busy(self) -> bool:
        return self.used > _BUSY


@dataclass(frozen=True)
class Gpus:
    """``shown`` by the driver, None where its tool is not or fails (``problem``); ``offered`` to Ray."""

    shown: tuple[Gpu, ...] | None
    offered: float
    problem: str = ""


def look(offered: float, visible: str | None) -> Gpus:
    """``visible``: CUDA_VISIBLE_DEVICES of the node's raylet, None if unset."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return Gpus(None, offered, "nvidia-smi is not installed")
    if visible == "":
        return Gpus((), offered)
    if visible is not None and "MIG-" in visible:
        return Gpus(None, offered, "parts of GPUs (MIG) are not listed")
    query = "--query-gpu=uuid,name,memory.total,memory.used,driver_version"
    command = [tool, query, "--format=csv,noheader,nounits", *([f"--id={visible}"] if visible else [])]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return Gpus(None, offered, f"nvidia-smi: {error}")
    if answer.returncode != 0:
        said = (answer.stdout + answer.stderr).strip().splitlines()
        return Gpus(None, offered, f"nvidia-smi: {said[0] if said else f'code {answer.returncode}'}")
    return Gpus(parse(answer.stdout), offered)


def parse(listing: str) -> tuple[Gpu, ...]:
    """Lines of nvidia-smi. Sizes that the driver does not tell ("[N/A]") count as 0."""
    found = []
    for line in listing.splitlines():
        parts = [part.strip() for part in line.split(",")]
        if len(parts) == 5:
            total, used = (int(part) << 20 if part.isdigit() else 0 for part in parts[2:4])
            found.append(Gpu(parts[0], parts[1], total, used, parts[4]))
    return tuple(found)


def gpu_ids() -> tuple[str, ...]:
    """UUIDs of the GPUs that a process started here would see."""
    return tuple(gpu.uuid for gpu in look(0, os.environ.get("CUDA_VISIBLE_DEVICES")).shown or ())


def shared(own: Sequence[str], others: Mapping[str, Sequence[str]]) -> str | None:
    """Whether one of these UUIDs was reported by another node: two nodes of the job are one machine."""
    for name, theirs in others.items():
        twice = sorted(set(own) & set(theirs))
        if twice:
            return (
                f"its GPU {twice[0]} is also {name}'s: both run on one machine; ask for one task a node, or give each "
                "its own CUDA_VISIBLE_DEVICES"
            )
    return None


def judge(nodes: Mapping[str, Gpus], *, wanted: int, torch: Mapping[str, str] | None = None) -> list[Finding]:
    """``wanted`` GPUs a node; 0 if the run needs none. ``torch``: its version on each node."""
    found: list[Finding] = []
    for name, gpus in nodes.items():
        found += _count(name, gpus, wanted)
        if wanted and "+cpu" in (torch or {}).get(name, ""):
            what = f"torch {(torch or {})[name]} is a build without CUDA"
            found.append(Finding("GPUs", "error", name, what, "install torch's CUDA build on every node"))
        idle = sum(not gpu.busy for gpu in gpus.shown or ())
        for number, gpu in enumerate(gpus.shown or ()):
            if wanted and gpu.busy:
                what = f"GPU {number} ({gpu.uuid}) has {gpu.used / _GIB:.1f} of {gpu.total / _GIB:.1f} GiB in use"
                cure = "`nvidia-smi` there shows by whom; end it, or less fits than planned"
                # Another run of the same cluster has its own; Ray gives none of them twice
                severity: Severity = "warning" if idle < wanted else "note"
                found.append(Finding("GPUs", severity, name, what, cure))
    return found + _twice(nodes) + _kinds(nodes, wanted)


def _count(name: str, gpus: Gpus, wanted: int) -> list[Finding]:
    if gpus.offered < wanted:
        what = f"offers {gpus.offered:g} GPUs to Ray, {wanted} are wanted"
        cure = (
            "look at `nvidia-smi -L` and CUDA_VISIBLE_DEVICES there, start Ray with --num-gpus, or lower "
            "trainer.n_gpus_per_node (trainer.device=cpu counts processes instead of GPUs)"
        )
        return [Finding("GPUs", "error", name, what, cure)]
    if gpus.shown is None:
        if not gpus.offered:
            return []
        what = f"offers {gpus.offered:g} GPUs to Ray, and none can be looked at: {gpus.problem}"
        return [Finding("GPUs", "warning", name, what, "duplicates and lost GPUs cannot be found without it")]
    if gpus.offered > len(gpus.shown):
        what = f"offers {gpus.offered:g} GPUs to Ray, but the driver shows {len(gpus.shown)}"
        cure = "one may have failed (`dmesg | grep -i xid`): mend or drain the node, or correct --num-gpus"
        return [Finding("GPUs", "error", name, what, cure)]
    return []


def _twice(nodes: Mapping[str, Gpus]) -> list[Finding]:
    ids = {name: [gpu.uuid for gpu in gpus.shown or ()] for name, gpus in nodes.items()}
    found, before = [], dict[str, list[str]]()
    for name, own in ids.items():
        wrong = shared(own, before)
        if wrong is not None:
            found.append(Finding("GPUs", "error", name, *wrong.split("; ", 1)))
        before[name] = own
    return found


def _kinds(nodes: Mapping[str, Gpus], wanted: int) -> list[Finding]:
    kinds: dict[str, list[str]] = {}
    for name, gpus in nodes.items():
        for kind in sorted({gpu.name for gpu in gpus.shown or ()}):
            kinds.setdefault(kind, []).append(name)
    if not wanted or len(kinds) < 2:
        return []
    what = "; ".join(f"{kind} on {', '.join(names)}" for kind, names in kinds.items())
    cure = "every step waits for the slowest, and memory is planned for the smallest: use GPUs of one kind"
    return [Finding("GPUs", "warning", "", f"different GPUs: {what}", cure)]
