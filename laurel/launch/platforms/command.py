"""Another program's command, run to its end."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from laurel.types import LaurelError


def find(program: str, cure: str) -> str:
    """Where ``program`` is. Raises LaurelError with ``cure`` if it is not installed."""
    found = shutil.which(program)
    if found is None:
        raise LaurelError(f"{program} is not on PATH here: {cure}; or print the file with --dry-run")
    return found


def ask(words: Sequence[str], *, env: Mapping[str, str] | None = None, timeout_s: float = 120) -> str:
    """Its output. Raises LaurelError with what it said if it fails."""
    try:
        done = subprocess.run(words, capture_output=True, text=True, env=_environ(env), timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired as error:
        raise LaurelError(f"{Path(words[0]).name} {words[1]} did not answer within {timeout_s:.0f} s") from error
    if done.returncode != 0:
        said = (done.stderr.strip() or done.stdout.strip())[-2000:]
        raise LaurelError(f"{Path(words[0]).name} {words[1]} ended with {done.returncode}: {said}")
    return done.stdout


def show(words: Sequence[str], *, env: Mapping[str, str] | None = None) -> int:
    """Its exit code; what it says goes straight to the terminal."""
    return subprocess.run(words, env=_environ(env), check=False).returncode


def _environ(more: Mapping[str, str] | None) -> dict[str, str]:
    return os.environ | dict(more or {})
