"""What was measured, as JSON lines that are printed and kept at once, and tables made of them.

A side that is measured (ours or a peer) runs in a process of its own and prints its lines; the program that started it
adds them to its file as they come, so that nothing measured is lost when a later part fails or time runs out.
"""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

Row = dict[str, Any]
_START = '{"what": '
PACKAGES = ("torch", "transformers", "vllm", "trl", "triton", "ray", "accelerate")


def show(what: str, **fields: Any) -> Row:
    """Print one line of what a side found, for the program that reads it. ``what`` names the kind of the line."""
    row = {"what": what, **fields}
    print(json.dumps(row, default=str), flush=True)
    return row


def parse(line: str) -> Row | None:
    """The row that a printed line ends with (a progress bar may stand before it), or None for any other text."""
    start = line.find(_START)
    if start < 0:
        return None
    try:
        return dict(json.loads(line[start:]))
    except json.JSONDecodeError:
        return None


class Records:
    """The rows of one program, kept in ``path`` (added to; None keeps them in memory alone)."""

    def __init__(self, path: Path | None):
        self.path = path
        self.rows = read(path) if path is not None else []
        self.before = len(self.rows)
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)

    def add(self, row: Mapping[str, Any]) -> None:
        kept = {**row, "time": round(time.time(), 1)}
        self.rows.append(kept)
        if self.path is not None:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(kept, default=str) + "\n")

    def show(self, what: str, **fields: Any) -> None:
        self.add(show(what, **fields))

    def of(self, what: str) -> list[Row]:
        return [row for row in self.rows if row["what"] == what]

    def problems(self) -> list[str]:
        """What failed or was skipped since the program began; earlier calls have said theirs."""
        new = [row for row in self.rows[self.before :] if row["what"] in ("failed", "skipped")]
        return [
            " ".join(filter(None, [row["side"], row.get("setting"), row.get("work")])) + f": {row['why']}"
            for row in new
        ]


def read(path: Path) -> list[Row]:
    """Rows of a file that an earlier call wrote, so that a table may be of several calls."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [row for row in map(parse, lines) if row is not None]


def machine() -> Row:
    """Versions and hardware, found without importing torch: a process that has touched the GPU keeps memory there."""
    cpus = Path("/proc/cpuinfo")
    names = [line.split(":")[1].strip() for line in cpus.read_text().splitlines() if line.startswith("model name")]
    return {
        "python": platform.python_version(),
        "cpu": f"{len(names)} x {names[0]}" if names else platform.processor(),
        "packages": {name: version for name in PACKAGES if (version := installed(name)) is not None},
    }


def installed(package: str) -> str | None:
    """The version of a package that is there, else None."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def device() -> str:
    """The GPU's name, or the CPU's way of computing, as torch names it."""
    import torch

    if torch.cuda.is_available():
        return f"{torch.cuda.get_device_name()}, CUDA {torch.version.cuda}"
    return f"cpu {torch.backends.cpu.get_cpu_capability()}, {torch.get_num_threads()} threads"


def peak_gib() -> float | None:
    """Most GPU memory that torch had allocated in this process, in GiB."""
    import torch

    return round(torch.cuda.max_memory_allocated() / 2**30, 2) if torch.cuda.is_available() else None


def born() -> float:
    """When this process was started, in Unix seconds: its imports count in a start-up time."""
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    uptime = float(Path("/proc/uptime").read_text().split()[0])
    return time.time() - (uptime - ticks / os.sysconf("SC_CLK_TCK"))


def short(value: float | None) -> float | None:
    """Six digits that count: what lines of metrics keep. Example: 0.123456789 is 0.123457."""
    return None if value is None else float(f"{value:.6g}")


def table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A Markdown table; floats with three digits that count, None as nothing."""
    cells = [list(head), *[[_cell(value) for value in row] for row in rows]]
    widths = [max(len(row[i]) for row in cells) for i in range(len(head))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in cells
    ]
    return "\n".join([lines[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *lines[1:]])


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return str(value)
