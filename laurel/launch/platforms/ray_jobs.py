"""Ray's own jobs, on a cluster that runs already."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from laurel.launch.platforms.command import ask, show
from laurel.launch.records import Record
from laurel.launch.spec import Job, RayOptions
from laurel.launch.upload import check_upload
from laurel.workers.raylets import hand_started_cluster, running_raylets


def submit(job: Job, options: RayOptions, text: str, file: Path) -> tuple[str, dict[str, str]]:
    """Runs the rendered script, after a look at what would be sent. Raises LaurelError with what Ray said."""
    if options.runtime_env is not None:
        check_upload(Path(options.runtime_env))
    file.write_text(text)
    ask(["bash", str(file)], env=_environ(), timeout_s=300)
    return job.name, {"address": options.address}


def state(record: Record) -> str:
    return ask([_ray(), "job", "status", *_address(record), record.handle], env=_environ()).strip()


def logs(record: Record, *, follow: bool) -> int:
    words = [_ray(), "job", "logs", *_address(record), record.handle, *(["--follow"] if follow else [])]
    return show(words, env=_environ())


def stop(record: Record) -> None:
    ask([_ray(), "job", "stop", *_address(record), record.handle], env=_environ())


def _address(record: Record) -> list[str]:
    return [f"--address={record.details['address']}"]


def _ray() -> str:
    return os.path.join(os.path.dirname(sys.executable), "ray")


def _environ() -> dict[str, str]:
    """Speaks as the cluster of this machine does, unless the user's shell says otherwise; our Ray first on PATH."""
    path = {"PATH": f"{os.path.dirname(sys.executable)}:{os.environ.get('PATH', '')}"}
    mine = hand_started_cluster(running_raylets(), os.geteuid())
    auth = dict(mine.auth or {}) if mine is not None and "RAY_AUTH_MODE" not in os.environ else {}
    return auth | path
