"""SkyPilot: sky launch, queue, logs, down. The job is the only one of a SkyPilot cluster of its name."""

from __future__ import annotations

import secrets
from pathlib import Path

from laurel.launch.cluster.secret import VARIABLE
from laurel.launch.platforms.command import ask, find, show
from laurel.launch.records import Record
from laurel.launch.spec import Job, SkyPilotOptions
from laurel.types import LaurelError

_CURE = "pip install skypilot in an environment of its own and put it on PATH"


def submit(job: Job, options: SkyPilotOptions, text: str, file: Path) -> tuple[str, dict[str, str]]:
    """``sky launch``; values of secrets go by the environment of that command, never by its words."""
    sky = find("sky", _CURE)
    file.write_text(text)
    words = [sky, "launch", "--yes", "--cluster", job.name, "--detach-run", "--secret", VARIABLE]
    words += [word for name in job.secrets for word in ("--secret", name)]
    code = show([*words, str(file)], env={VARIABLE: secrets.token_hex(32)})
    if code != 0:
        raise LaurelError(f"sky launch ended with {code}; `sky down {job.name}` removes what it made")
    return job.name, {}


def state(record: Record) -> str:
    return ask([find("sky", _CURE), "queue", record.handle]).strip()


def logs(record: Record, *, follow: bool) -> int:
    return show([find("sky", _CURE), "logs", record.handle, *([] if follow else ["--no-follow"])])


def stop(record: Record) -> None:
    """Its machines go too: they cost money."""
    ask([find("sky", _CURE), "down", "--yes", record.handle], timeout_s=600)
