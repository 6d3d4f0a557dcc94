"""Processes of a node, and that none of them outlives it.

Ray starts a dozen daemons, and some schedulers lose track of what was re-parented. So this process takes in orphans
(a child subreaper), its children die if it is killed, and at the end everything below it is ended.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


def adopt_orphans() -> None:
    """Descendants whose parents end become children of this process (Linux only)."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def start(
    command: Sequence[str], environ: Mapping[str, str], output: IO[Any] | int | None = None
) -> subprocess.Popen[bytes]:
    """A child in a process group of its own, so that a terminal's Ctrl-C reaches it only through us. It gets SIGTERM
    when this process dies in any way, and ignores SIGUSR1 unless it asks for it: Slurm sends that to every process of a
    step, and it would end Ray, whose ranks the training still needs to save."""
    return subprocess.Popen(
        command,
        env=dict(environ),
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT if output is not None else None,
        process_group=0,
        preexec_fn=_prepare if sys.platform == "linux" else None,
    )


def _prepare() -> None:
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


def end(process: subprocess.Popen[bytes], grace_s: float) -> int:
    """SIGTERM, then after ``grace_s`` SIGKILL; its exit code."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            return process.wait(grace_s)
        process.kill()
    return process.wait()


def end_descendants(grace_s: float = 3.0) -> None:
    """End every process below this one: SIGTERM, then SIGKILL to what is left."""
    for number, wait_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, 2.0)):
        for pid in descendants():
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)
        deadline = time.monotonic() + wait_s
        while descendants() and time.monotonic() < deadline:
            time.sleep(0.05)


def descendants(proc: Path = Path("/proc")) -> list[int]:
    """Living processes below this one; orphans that came to us are reaped on the way."""
    _reap()
    children: dict[int, list[int]] = {}
    for folder in proc.glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:  # it ended while we looked
            continue
        if fields[0] != "Z":
            children.setdefault(int(fields[1]), []).append(int(folder.name))
    found, below = [], [os.getpid()]
    while below:
        own = children.get(below.pop(), [])
        found += own
        below += own
    return found


def _reap() -> None:
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
