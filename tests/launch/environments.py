"""Where the programs of the launch tests are, or why a test that needs them is skipped."""

from __future__ import annotations

import shutil
from pathlib import Path

from launch.hosts import REPOSITORY

ENVS = REPOSITORY / ".envs"
SKYPILOT = ENVS / "skypilot" / "bin"
DSTACK = ENVS / "dstack" / "bin"
WHEELS = ENVS / "wheels"
_MAKE = "run `make launch-env`"


def program(name: str) -> str | None:
    return shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin")


def needs_programs(*names: str) -> str:
    """Why a test that needs these programs of the system cannot run; empty if it can."""
    missing = [name for name in names if program(name) is None]
    return f"{', '.join(missing)} not installed: {_reason('system')}" if missing else ""


def needs_slurm() -> str:
    return needs_programs("slurmctld", "slurmd", "sbatch", "munged")


def needs_skypilot() -> str:
    return "" if _made("skypilot") else f"no SkyPilot in .envs: {_reason('skypilot')}"


def needs_dstack() -> str:
    return "" if _made("dstack") else f"no dstack in .envs: {_reason('dstack')}"


def needs_wheels() -> str:
    """What SkyPilot installs on the nodes, and the Python 3.10 for it."""
    return "" if _made("wheels") else f"no wheels for SkyPilot's nodes in .envs: {_reason('wheels')}"


def python310() -> Path:
    """The folder of the Python 3.10 that made .envs/wheels; for PATH of SkyPilot's nodes."""
    return (ENVS / "python3.10" / "bin" / "python3.10").resolve().parent


def _made(name: str) -> bool:
    return any(ENVS.glob(f"{name}-*"))


def _reason(name: str) -> str:
    missing = ENVS / f"{name}.missing"
    return missing.read_text().strip() if missing.exists() else _MAKE
