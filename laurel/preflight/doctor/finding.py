"""What the doctor found: one thing, where, how bad it is, and its cure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from laurel.types import LaurelError

Severity = Literal["error", "warning", "note"]
Topic = Literal[
    "settings",
    "cluster",
    "versions",
    "network",
    "ports",
    "clock",
    "GPUs",
    "CPUs",
    "memory",
    "/dev/shm",
    "disk",
    "model",
    "data",
    "checkpoints",
    "tokenizer",
    "reward",
    "bandwidth",
]
HERE = "this machine"


@dataclass(frozen=True, slots=True)
class Finding:
    """An ``error`` ends a run sooner or later; with a ``warning`` it goes on, worse than it could; a ``note`` is a fact
    worth reading. ``where`` names a node, HERE, or nothing in particular ("")."""

    topic: Topic
    severity: Severity
    where: str
    what: str
    cure: str = ""

    def __str__(self) -> str:
        said = f"{self.where}: {self.what}" if self.where else self.what
        return f"{said}; {self.cure}" if self.cure else said


def of_error(topic: Topic, where: str, error: LaurelError, cure: str = "") -> Finding:
    """An error of another room; without a ``cure`` its message ends with one, after a semicolon."""
    if cure:
        return Finding(topic, "error", where, str(error), cure)
    what, _, said = str(error).rpartition("; ")
    return Finding(topic, "error", where, what or said, said if what else "see docs/doctor.md")


class NodesError(LaurelError):
    """What the doctor found on the nodes of a run that was about to start."""


def errors(findings: Iterable[Finding]) -> list[Finding]:
    return [finding for finding in findings if finding.severity == "error"]
