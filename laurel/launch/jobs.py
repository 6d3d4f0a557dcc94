"""From a job to what a platform runs: write the file, hand it over, remember it, follow it."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from types import ModuleType

from laurel.launch import records
from laurel.launch.platforms import dstack, ray_jobs, skypilot, slurm
from laurel.launch.records import Record
from laurel.launch.render import render
from laurel.launch.spec import DstackOptions, Job, Options, RayOptions, SkyPilotOptions, SlurmOptions
from laurel.types import LaurelError

Say = Callable[[str], object]

PLATFORMS: dict[type[Options], tuple[str, ModuleType, str]] = {
    SlurmOptions: ("slurm", slurm, "sbatch"),
    SkyPilotOptions: ("skypilot", skypilot, "yaml"),
    DstackOptions: ("dstack", dstack, "dstack.yml"),
    RayOptions: ("ray", ray_jobs, "sh"),
}
_BY_NAME = {name: module for name, module, _ in PLATFORMS.values()}


def launch(job: Job, options: Options, *, say: Say, follow: bool) -> int:
    """Submit, remember, and follow the logs if asked; the job goes on when following ends.

    Raises LaurelError if a secret is not in the environment, or with what the platform said.
    """
    if type(options) not in PLATFORMS:
        raise LaurelError("this platform is only rendered: use --dry-run, and hand the file over yourself")
    for secret in job.secrets:
        if secret not in os.environ:
            raise LaurelError(f"--secret={secret}: the variable is not set here; export it first")
    name, platform, suffix = PLATFORMS[type(options)]
    folder = records.folder()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    file = folder / f"{job.name}.{suffix}"
    handle, details = platform.submit(job, options, render(job, options), file)
    started = datetime.now().astimezone().isoformat(timespec="seconds")
    records.write(Record(job.name, name, handle, started, str(Path.cwd()), details))
    say(f"{name} has taken {job.name} ({handle}), from {file}")
    say(f"laurel launch status|logs|stop {job.name}")
    return logs(job.name, follow=True) if follow else 0


def logs(name: str, *, follow: bool) -> int:
    """Exit code of what the platform's command said; following may be interrupted, and the job goes on."""
    record = records.read(name)
    try:
        return int(_platform(record).logs(record, follow=follow))
    except KeyboardInterrupt:
        return 130


def status(name: str) -> str:
    record = records.read(name)
    return str(_platform(record).state(record))


def stop(name: str) -> None:
    record = records.read(name)
    _platform(record).stop(record)


def listed() -> list[str]:
    return [f"{record.name}  {record.platform} {record.handle}  since {record.started}" for record in records.every()]


def _platform(record: Record) -> ModuleType:
    if record.platform not in _BY_NAME:
        raise LaurelError(f"{record.name} is on {record.platform}, which this version does not know")
    return _BY_NAME[record.platform]
