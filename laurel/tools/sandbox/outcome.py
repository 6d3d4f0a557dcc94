"""What a program in the sandbox may use, and what became of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from laurel.types import LaurelError

# exited: it ended by itself, with whatever exit code; the others name the limit at which it was ended.
Ending = Literal["exited", "time", "memory", "processes", "files", "output"]


class SandboxError(LaurelError):
    """The sandbox could not be set up; says nothing about the program."""


@dataclass(frozen=True)
class Limits:
    """What one program may use, all its processes together where nothing else is said."""

    time_s: float = 10.0
    """Wall time; a single process may use as much CPU time and a second more."""
    memory_mib: int = 1024
    """Memory; a single process may not even reserve more addresses than that."""
    processes: int = 32
    """Processes and threads."""
    output_bytes: int = 1 << 20
    """Of stdout and of stderr each."""
    files_mib: int = 64
    """Files in its folder."""
    open_files: int = 128
    """File descriptors of a single process."""


@dataclass(frozen=True)
class Outcome:
    """How a program ended. ``exit_code`` is negative for a signal (-9 is SIGKILL), None if a limit ended it.

    ``stdout`` and ``stderr`` are what it wrote up to the output limit, bytes that are no UTF-8 replaced.
    """

    ending: Ending
    exit_code: int | None
    stdout: str
    stderr: str
    seconds: float

    @property
    def ok(self) -> bool:
        return self.ending == "exited" and self.exit_code == 0

    @property
    def reason(self) -> str:
        """In words, for people and for a model that called it as a tool; empty if it went well."""
        if self.ok:
            return ""
        if self.ending == "exited":
            lines = self.stderr.strip().splitlines()
            return lines[-1] if lines else f"exit code {self.exit_code}"
        return f"ended at the limit of {self.ending}"
