"""Which node of the job this one is, as the scheduler's variables say."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from laurel.types import LaurelError

Platform = Literal["slurm", "skypilot", "dstack"]


@dataclass(frozen=True)
class Place:
    """One node of a job.

    ``heads`` are names or addresses of the node of rank 0, to be tried in turn. ``job`` is the same on every node and
    differs between jobs. ``peers`` names the nodes in rank order where the scheduler tells; ``gpus`` is its count for
    this node, None where it does not say.
    """

    rank: int
    nodes: int
    heads: tuple[str, ...]
    job: str
    peers: tuple[str, ...] = ()
    gpus: int | None = None

    def name_of(self, rank: int) -> str:
        return f"{self.peers[rank]} (rank {rank})" if rank < len(self.peers) else f"rank {rank}"


def read_place(platform: Platform, environ: Mapping[str, str] | None = None) -> Place:
    """Raises LaurelError that names the variable which is missing or makes no sense, and what sets it."""
    environ = os.environ if environ is None else environ
    return {"slurm": _slurm, "skypilot": _skypilot, "dstack": _dstack}[platform](environ)


def _slurm(environ: Mapping[str, str]) -> Place:
    """Under ``srun`` with one task per node. There is no SLURM_NODE_RANK; SLURM_PROCID counts the step's tasks."""
    where = "call it by srun inside the job, with --ntasks-per-node=1"
    rank = _number(environ, "SLURM_PROCID", where)
    nodes = _number(environ, "SLURM_STEP_NUM_NODES" if "SLURM_STEP_NUM_NODES" in environ else "SLURM_NNODES", where)
    tasks = int(environ.get("SLURM_STEP_NUM_TASKS", nodes))
    if tasks != nodes:
        raise LaurelError(f"SLURM_STEP_NUM_TASKS={tasks} on {nodes} nodes: one task a node is needed; {where}")
    peers = expand(environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_JOB_NODELIST", ""))
    # srun runs on the first node (the batch script's), whose address needs no name service
    launched_from = environ.get("SLURM_LAUNCH_NODE_IPADDR", "")
    heads = tuple(dict.fromkeys(filter(None, [*peers[:1], launched_from])))
    if not heads:
        raise LaurelError(f"SLURM_JOB_NODELIST is not set: {where}")
    job = f"slurm/{environ.get('SLURM_JOB_ID', '')}/{environ.get('SLURM_RESTART_COUNT', '0')}"
    gpus = environ.get("SLURM_GPUS_ON_NODE")
    return Place(rank, nodes, heads, job, tuple(peers), int(gpus) if gpus and gpus.isdigit() else None)


def _skypilot(environ: Mapping[str, str]) -> Place:
    where = "SkyPilot sets it in a task's run section"
    rank = _number(environ, "SKYPILOT_NODE_RANK", where)
    peers = tuple(environ.get("SKYPILOT_NODE_IPS", "").split())
    if not peers:
        raise LaurelError(f"SKYPILOT_NODE_IPS is not set: {where}")
    gpus = environ.get("SKYPILOT_NUM_GPUS_PER_NODE", "")
    job = f"skypilot/{environ.get('SKYPILOT_TASK_ID', '')}"
    return Place(rank, len(peers), peers[:1], job, peers, int(gpus) if gpus.isdigit() else None)


def _dstack(environ: Mapping[str, str]) -> Place:
    where = "dstack sets it in a task with `nodes:`"
    rank, nodes = _number(environ, "DSTACK_NODE_RANK", where), _number(environ, "DSTACK_NODES_NUM", where)
    head = environ.get("DSTACK_MASTER_NODE_IP", "")
    if not head:
        raise LaurelError(f"DSTACK_MASTER_NODE_IP is not set: {where}")
    job = f"dstack/{environ.get('DSTACK_RUN_ID') or environ.get('DSTACK_RUN_NAME', '')}"
    gpus = environ.get("DSTACK_GPUS_PER_NODE", "")
    peers = tuple(environ.get("DSTACK_NODES_IPS", "").split())
    return Place(rank, nodes, (head,), job, peers, int(gpus) if gpus.isdigit() else None)


def _number(environ: Mapping[str, str], name: str, where: str) -> int:
    value = environ.get(name)
    if value is None:
        raise LaurelError(f"{name} is not set: {where}")
    if not value.isdigit():
        raise LaurelError(f"{name}={value} is no number: {where}")
    return int(value)


def expand(nodelist: str) -> list[str]:
    """Slurm's compact list of hosts as names, in order.

    Example: ``expand("gpu[01-03,7]x,login")`` is ``["gpu01x", "gpu02x", "gpu03x", "gpu7x", "login"]``.
    """
    return [name for part in _parts(nodelist) for name in _expanded(part)]


def _parts(nodelist: str) -> list[str]:
    """Cut at the commas that stand outside brackets."""
    found, start, depth = [], 0, 0
    for at, letter in enumerate(nodelist):
        depth += (letter == "[") - (letter == "]")
        if letter == "," and depth == 0:
            found.append(nodelist[start:at])
            start = at + 1
    return [part.strip() for part in (*found, nodelist[start:]) if part.strip()]


def _expanded(part: str) -> list[str]:
    bracket = re.search(r"\[([^]]*)\]", part)
    if bracket is None:
        return [part]
    before, after = part[: bracket.start()], part[bracket.end() :]
    names = []
    for piece in bracket[1].split(","):
        first, _, last = piece.partition("-")
        numbers = range(int(first), int(last or first) + 1)
        names += [f"{before}{number:0{len(first)}d}" for number in numbers]
    return [name + rest for name in names for rest in _expanded(after)] if after else names
