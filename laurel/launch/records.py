"""What was launched from here: a file per job in ~/.laurel/jobs, so that status, logs and stop need the name alone."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

from laurel.types import LaurelError


@dataclass(frozen=True)
class Record:
    """``handle`` is the platform's own name of the job; ``details`` is what the platform's commands need besides."""

    name: str
    platform: str
    handle: str
    started: str
    folder: str
    details: dict[str, str] = field(default_factory=dict)


def folder(home: Path | None = None) -> Path:
    return (home or Path.home()) / ".laurel" / "jobs"


def write(record: Record, home: Path | None = None) -> Path:
    """The latest job of a name counts; an earlier one of that name is forgotten."""
    place = folder(home)
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    file, new = place / f"{record.name}.json", place / f".{record.name}.new"
    new.write_text(json.dumps(asdict(record), indent=1) + "\n")
    new.replace(file)
    return file


def read(name: str, home: Path | None = None) -> Record:
    """Raises LaurelError that lists what there is if nothing of that name was launched from here."""
    file = folder(home) / f"{name}.json"
    if not file.exists():
        known = ", ".join(record.name for record in every(home)) or "none"
        raise LaurelError(f"no job {name} was launched from here; known: {known}")
    return _read(file)


def every(home: Path | None = None) -> list[Record]:
    """The latest first."""
    files = sorted(folder(home).glob("*.json"))
    return sorted((_read(file) for file in files), key=lambda record: record.started, reverse=True)


def _read(file: Path) -> Record:
    try:
        return Record(**json.loads(file.read_text()))
    except (ValueError, TypeError) as error:
        raise LaurelError(f"{file} is no record of a job ({error}); delete it") from error
