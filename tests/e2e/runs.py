"""Starting a run and reading what it left: exit code, text, metrics, samples, checkpoints."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from laurel.trainer.main_ppo import main

REPOSITORY = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "laurel.trainer.main_ppo"]
# Metrics that depend on the clock; every other number must be the same in two equal runs.
CLOCK = ("timing_s/", "timing_per_token_ms/", "perf/", "rollout/tokens_per_second")


@dataclass(frozen=True)
class Outcome:
    """One finished run. ``folder`` is its trainer.default_local_dir."""

    code: int
    text: str
    folder: Path

    @property
    def log(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder / "metrics.jsonl").read_text().splitlines()]

    def series(self, metric: str) -> dict[int, float]:
        """Values of one metric by step."""
        return {row["step"]: row[metric] for row in self.log if metric in row}

    def numbers(self) -> list[tuple[int, dict[str, float]]]:
        """All logged numbers that do not depend on the clock, in order."""
        rows = [(row["step"], {name: value for name, value in row.items() if timeless(name)}) for row in self.log]
        return [(step, values) for step, values in rows if values]

    def checkpoint(self, step: int) -> Path:
        return self.folder / f"global_step_{step}"


def timeless(name: str) -> bool:
    return name not in ("step", "time") and not name.startswith(CLOCK)


def run_here(arguments: list[str], folder: Path) -> Outcome:
    """main_ppo in this process, inside the Ray that the tests share."""
    text = StringIO()
    with redirect_stdout(text), redirect_stderr(text):
        code = main([*arguments, f"trainer.default_local_dir={folder}"])
    return Outcome(code, text.getvalue(), folder)


def run_command(
    arguments: list[str], *, folder: Path, timeout_s: float, environment: dict[str, str] | None = None
) -> Outcome:
    """The real command line in a process of its own, started in ``folder``, its output no terminal."""
    folder.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        [*COMMAND, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), **(environment or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    return Outcome(done.returncode, done.stdout, folder)


def tensors(checkpoint: Path) -> dict[str, torch.Tensor]:
    """Every tensor of a checkpoint, weights and optimizer moments of all roles, by file and key."""
    found = {}
    for file in sorted(checkpoint.rglob("*.safetensors")):
        for key, tensor in load_file(file).items():
            found[f"{file.relative_to(checkpoint)}:{key}"] = tensor
    return found


def whole_tensors(checkpoint: Path) -> dict[str, torch.Tensor]:
    """As ``tensors`` by role and key, the shards of several ranks put together along their first dimension."""
    parts: dict[str, list[torch.Tensor]] = {}
    for name, tensor in tensors(checkpoint).items():
        file, _, key = name.partition(":")
        parts.setdefault(f"{Path(file).parent}:{key}", []).append(tensor)
    return {name: torch.cat(found) if found[0].ndim else found[0] for name, found in parts.items()}


def counts(checkpoint: Path) -> dict[str, Any]:
    """What else a checkpoint remembers: run state, and each role's optimizer counts."""
    states = sorted(checkpoint.rglob("state.json"))
    return {str(file.relative_to(checkpoint)): json.loads(file.read_text()) for file in states} | {
        "run_state": json.loads((checkpoint / "run_state.json").read_text())
    }


def differences(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> list[str]:
    """Names that only one has, or whose values differ in any bit."""
    return sorted(one.keys() ^ other.keys()) + [
        name for name in one.keys() & other.keys() if not torch.equal(one[name], other[name])
    ]


def validation_rows(text: str) -> list[int]:
    """The numbers of rows that the run printed at its validations."""
    return [int(rows) for rows in re.findall(r"validation at step \d+: (\d+) rows", text)]
