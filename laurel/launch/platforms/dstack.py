"""dstack: dstack apply, ps, logs, stop."""

from __future__ import annotations

import secrets
from pathlib import Path

from laurel.launch.cluster.secret import VARIABLE
from laurel.launch.platforms.command import ask, find, show
from laurel.launch.records import Record
from laurel.launch.spec import DstackOptions, Job
from laurel.types import LaurelError

_CURE = "pip install dstack in an environment of its own and put it on PATH"


def submit(job: Job, options: DstackOptions, text: str, file: Path) -> tuple[str, dict[str, str]]:
    """``dstack apply``, which takes values of the names under ``env`` from its own environment."""
    dstack = find("dstack", _CURE)
    file.write_text(text)
    code = show([dstack, "apply", "-d", "-y", "-f", str(file)], env={VARIABLE: secrets.token_hex(32)})
    if code != 0:
        raise LaurelError(f"dstack apply ended with {code}")
    return job.name, {}


def state(record: Record) -> str:
    """The lines of ``dstack ps -a`` that are this run's."""
    table = ask([find("dstack", _CURE), "ps", "-a"])
    lines = [line.strip() for line in table.splitlines() if record.handle in line]
    return "\n".join(lines) or "gone"


def logs(record: Record, *, follow: bool) -> int:
    """``dstack logs`` prints what there is; it has no way to follow."""
    return show([find("dstack", _CURE), "logs", record.handle])


def stop(record: Record) -> None:
    ask([find("dstack", _CURE), "stop", "-y", record.handle])
