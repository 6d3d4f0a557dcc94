"""Commands in a fake host: what they said, how they ended, and signals that reach them."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

_START_S = 20.0


@dataclass(frozen=True)
class Done:
    """A command that ended: its exit status and both its outputs in one text."""

    code: int
    output: str


@dataclass
class HostProcess:
    """A command running in a host. ``pid`` is its id as this machine counts, not as the host does."""

    host: str
    pid: int
    log: Path
    _enter: subprocess.Popen[bytes] = field(repr=False)

    @property
    def output(self) -> str:
        return self.log.read_text(errors="replace")

    def poll(self) -> int | None:
        return self._enter.poll()

    def wait(self, timeout: float) -> int:
        """The exit status; an AssertionError with the output at the deadline."""
        try:
            return self._enter.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running on {self.host} after {timeout} s; output:\n{self.output}") from None

    def wait_for(self, text: str, timeout: float) -> str:
        """The output once it contains ``text``; an AssertionError if the command ends without it or time is over."""
        deadline = time.monotonic() + timeout
        while text not in self.output:
            ended = self.poll()
            if ended is not None and text not in self.output:
                raise AssertionError(f"ended with {ended} on {self.host} without {text!r}; output:\n{self.output}")
            if time.monotonic() > deadline:
                raise AssertionError(f"no {text!r} on {self.host} after {timeout} s; output:\n{self.output}")
            time.sleep(0.1)
        return self.output

    def send_signal(self, number: int) -> None:
        """To the command itself (not to nsenter, which would not pass it on)."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """SIGKILL to the command and its process group (not to what made a session of its own)."""
        if self.poll() is None:
            os.killpg(self._enter.pid, signal.SIGKILL)
            self._enter.wait(10)

    def end(self, timeout: float = 10) -> int:
        """SIGTERM, then SIGKILL after ``timeout`` seconds; the exit status."""
        self.send_signal(signal.SIGTERM)
        try:
            return self._enter.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            return self._enter.wait(10)


def child_of(process: subprocess.Popen[bytes]) -> int | None:
    """The one child of unshare or nsenter, which is what was asked for; None if it ended at once."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    deadline = time.monotonic() + _START_S
    while process.poll() is None and time.monotonic() < deadline:
        try:
            found = children.read_text().split()
        except OSError:
            return None
        if found:
            return int(found[0])
        time.sleep(0.002)
    return None
