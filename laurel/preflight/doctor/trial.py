"""An all-reduce of small processes: started on each node at once, told where to meet, and ended at the deadline."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

from laurel.preflight.doctor.finding import Finding
from laurel.preflight.doctor.network import GLOO, NCCL

Device = Literal["cpu", "cuda"]
_MODULE = "laurel.preflight.bandwidth"
_LEAST = {"cuda": {True: 2e9, False: 5e9}, "cpu": {True: 0.1e9, False: 0.1e9}}
"""Bytes per second below which a line is slow: between nodes (True), and within one."""


@dataclass(frozen=True)
class Outcome:
    """What one rank measured (``bytes`` summed in ``seconds``), or the ``problem`` with which it ended."""

    bytes: int = 0
    seconds: float = 0.0
    interface: str = ""
    problem: str = ""


class Trial:
    """The ranks of one node."""

    def __init__(self, ranks: Sequence[int], world: int, host: str, device: Device, visible: str | None):
        """``host`` is where rank 0 opens the meeting; ``visible`` the GPUs of the node, as CUDA_VISIBLE_DEVICES."""
        environment = dict(os.environ)
        if device == "cuda" and visible is not None:
            environment["CUDA_VISIBLE_DEVICES"] = visible
        elif device == "cuda":
            environment.pop("CUDA_VISIBLE_DEVICES", None)
        self._ranks = [
            _Rank([str(rank), str(world), host, device], environment | {"LOCAL_RANK": str(number)})
            for number, rank in enumerate(ranks)
        ]

    def address(self, within_s: float) -> str:
        """Where to meet, if rank 0 is among these. "" if it ended or is late; its result says why."""
        return self._ranks[0].hear("meeting", within_s)

    def run(self, address: str, within_s: float) -> list[Outcome]:
        deadline = time.monotonic() + within_s
        for rank in self._ranks:
            rank.tell(address)
        return [rank.outcome(max(0.0, deadline - time.monotonic())) for rank in self._ranks]

    def close(self) -> None:
        for rank in self._ranks:
            rank.close()


class _Rank:
    def __init__(self, words: Sequence[str], environment: Mapping[str, str]):
        self._process = subprocess.Popen(
            [sys.executable, "-m", _MODULE, *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._errors: list[str] = []
        self._readers = [threading.Thread(target=read, daemon=True) for read in (self._read, self._read_errors)]
        for reader in self._readers:
            reader.start()

    def hear(self, word: str, within_s: float) -> str:
        """The rest of the next line that starts with ``word``; "" if it does not come."""
        deadline = time.monotonic() + within_s
        while True:
            try:
                line = self._lines.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                return ""
            if line is None:  # the end, for whoever listens next too
                self._lines.put(None)
                return ""
            if line.startswith(f"{word} "):
                return line.removeprefix(f"{word} ").strip()

    def tell(self, line: str) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it ended; its outcome says why
            self._process.stdin.write(f"{line}\n")
            self._process.stdin.flush()

    def outcome(self, within_s: float) -> Outcome:
        heard = self.hear("result", within_s)
        if heard:
            return Outcome(**json.loads(heard))
        if self._process.poll() is None and not self._wait(0.5):
            return Outcome(problem=f"no result after {within_s:.0f} s")
        self._readers[1].join(1.0)
        said = [line.strip() for line in self._errors if line.strip()]
        return Outcome(problem=said[-1] if said else f"ended with {self._process.returncode}")

    def close(self) -> None:
        if self._process.stdin is not None:
            with suppress(BrokenPipeError):  # it ended before it was told where to meet
                self._process.stdin.close()
        if not self._wait(1.0):
            self._process.kill()
            self._process.wait()

    def _wait(self, seconds: float) -> bool:
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def _read_errors(self) -> None:
        assert self._process.stderr is not None
        self._errors.extend(self._process.stderr)


@dataclass(frozen=True)
class Plan:
    """Who takes part: ranks by node, and over what."""

    ranks: Mapping[str, Sequence[int]]
    device: Device

    @property
    def world(self) -> int:
        return sum(len(ranks) for ranks in self.ranks.values())

    @property
    def backend(self) -> str:
        return "nccl" if self.device == "cuda" else "gloo"


def bus(outcome: Outcome, world: int) -> float:
    """Bytes per second of each rank's line: a ring sends 2 (n - 1) / n of the data (NCCL's bus bandwidth)."""
    return 2 * (world - 1) / world * outcome.bytes / outcome.seconds


def describe(plan: Plan, outcomes: Mapping[str, Sequence[Outcome]]) -> str:
    """Example: ``all-reduce of 16 MiB over 2 nodes (2 ranks, gloo on eth0): 12 ms, 1.4 GB/s``; "" if one failed."""
    all_of_them = [outcome for of_node in outcomes.values() for outcome in of_node]
    if len(all_of_them) != plan.world or any(outcome.problem for outcome in all_of_them):
        return ""
    slowest = max(all_of_them, key=lambda outcome: outcome.seconds)
    count = len(plan.ranks)
    over = f"{count} node{'s' * (count != 1)} ({plan.world} ranks, {plan.backend} on {_interfaces(outcomes)})"
    return (
        f"all-reduce of {slowest.bytes >> 20} MiB over {over}: {slowest.seconds * 1e3:.0f} ms, "
        f"{bus(slowest, plan.world) / 1e9:.1f} GB/s"
    )


def judge(plan: Plan, outcomes: Mapping[str, Sequence[Outcome]], taken: Mapping[str, str | None]) -> list[Finding]:
    """``outcomes`` by node, none for one that did not answer; ``taken``: the interface that each node's ranks take."""
    failed = {
        name: next((outcome.problem for outcome in outcomes.get(name, ()) if outcome.problem), "")
        or ("" if outcomes.get(name) else "did not answer")
        for name in plan.ranks
    }
    used = ", ".join(f"{interface or 'no interface'} on {name}" for name, interface in taken.items())
    variable = NCCL if plan.device == "cuda" else GLOO
    if any(failed.values()):
        said = "; ".join(f"{name}: {problem}" for name, problem in failed.items() if problem)
        what = f"an all-reduce by {plan.backend} over {used} failed: {said}"
        cure = f"set {variable} to an interface by which all nodes reach each other, and open its ports among them"
        if plan.device == "cuda":
            cure += "; NCCL_DEBUG=INFO shows what it tries, NCCL_IB_DISABLE=1 or NCCL_P2P_DISABLE=1 leaves a part out"
        return [Finding("bandwidth", "error", "", what, cure)]
    slowest = min(bus(outcome, plan.world) for of_node in outcomes.values() for outcome in of_node)
    between = len(plan.ranks) > 1
    least = _LEAST[plan.device][between]
    if slowest >= least:
        return []
    what = f"an all-reduce by {plan.backend} over {used} runs at {slowest / 1e9:.2f} GB/s; {least / 1e9:g} are usual"
    cure = f"set {variable} to the fastest network that the nodes share"
    if plan.device == "cuda":
        cure = (
            f"{cure}, and look with NCCL_DEBUG=INFO whether NCCL takes InfiniBand or RoCE (NET/IB) and not NET/Socket"
            if between
            else "look at `nvidia-smi topo -m`, and with NCCL_DEBUG=INFO whether NCCL uses P2P or a large /dev/shm"
        )
    return [Finding("bandwidth", "warning", "", what, cure)]


def _interfaces(outcomes: Mapping[str, Sequence[Outcome]]) -> str:
    names = dict.fromkeys(outcome.interface for of_node in outcomes.values() for outcome in of_node)
    return ", ".join(name or "the default interface" for name in names)
