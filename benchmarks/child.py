"""A process of its own for each side that is measured, with a time limit, a log, and its lines as they come."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from benchmarks.record import Records, parse

REPOSITORY = Path(__file__).resolve().parents[1]
# Peers must not look for a network, and vLLM's sampler must not need a package that compiles at run time.
ENVIRONMENT = {
    "PYTHONUNBUFFERED": "1",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
    "WANDB_DISABLED": "true",
}
_GRACE_S = 20.0  # for a process that was interrupted to close what it holds


@dataclass(frozen=True)
class Ended:
    """How a process ended. ``why`` is empty if it did what it should; ``tail`` are its last lines."""

    why: str
    seconds: float
    tail: tuple[str, ...]


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process's environment, with the repository in front of PYTHONPATH."""
    path = os.pathsep.join([str(REPOSITORY), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, **ENVIRONMENT, "PYTHONPATH": path, **(extra or {})}


def run(
    command: Sequence[str],
    *,
    limit_s: float,
    on_line: Callable[[str], object],
    log: Path | None = None,
    extra: Mapping[str, str] | None = None,
    enough: Callable[[], bool] = lambda: False,
) -> Ended:
    """Run ``command`` until it ends, ``limit_s`` seconds are over, or ``enough`` says that no more is wanted of it.

    What it started goes with it. ``enough`` is asked a few times a second and is no failure.
    """
    start = time.monotonic()
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env=environment(extra),
        start_new_session=True,
    )
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(process, lines), daemon=True).start()
    tail: deque[str] = deque(maxlen=30)
    stopped = ""
    with open(log or os.devnull, "a", encoding="utf-8") as file:

        def take(wait_s: float) -> None:
            try:
                line = lines.get(timeout=wait_s)
                while True:
                    tail.append(line)
                    file.write(line + "\n")
                    on_line(line)
                    line = lines.get_nowait()
            except queue.Empty:
                file.flush()

        try:
            while process.poll() is None and not stopped:
                take(0.2)
                if enough():
                    stopped = "enough"
                elif time.monotonic() - start > limit_s:
                    stopped = f"stopped at its limit of {limit_s:.0f} s"
        finally:
            _end(process, gently=stopped == "enough")
        take(1.0)
    why = stopped if stopped else (f"exit code {process.returncode}" if process.returncode else "")
    return Ended("" if why == "enough" else why, time.monotonic() - start, tuple(tail))


def measure(
    records: Records,
    module: str,
    arguments: Sequence[str],
    *,
    limit_s: float,
    log: Path | None,
    about: Mapping[str, object],
    extra: Mapping[str, str] | None = None,
) -> None:
    """Run ``python -m module arguments``, keep its rows with ``about`` in each, and say how it failed if it did."""

    def keep(line: str) -> None:
        row = parse(line)
        if row is not None:
            records.show(**{**about, **row})

    ended = run([sys.executable, "-m", module, *arguments], limit_s=limit_s, on_line=keep, log=log, extra=extra)
    if ended.why:
        records.show("failed", **about, why=ended.why, seconds=round(ended.seconds, 1), tail=ended.tail[-12:])


def _read(process: subprocess.Popen[str], lines: queue.SimpleQueue[str]) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        lines.put(line.rstrip("\n"))


def _end(process: subprocess.Popen[str], *, gently: bool) -> None:
    """End the process and everything in the process group that it leads."""
    if gently and process.poll() is None:
        process.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE_S)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
