"""Ending early because somebody asks: a signal, or the wall clock. What is done is saved first."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
STOPPED = 75
"""Exit code: ended early, all that was done is saved, the same command goes on (EX_TEMPFAIL of sysexits.h)."""
_BEFORE_SLURMS_END_S = 120.0


class Interrupted(KeyboardInterrupt):
    """Raised where a request to end arrives. Ray lets only a KeyboardInterrupt through its waits."""


class Stopped(Exception):
    """The run ended early as it was asked to, and what it had done is saved."""


class Stop:
    """Hears SIGTERM, SIGINT, SIGUSR1 and the end of ``limit_s`` seconds. A context manager of the main thread.

    A request ends start-up, sampling, scoring and validation at once, and everything else at the next ``check``. A
    second SIGINT ends all at once, saved or not.
    """

    def __init__(self, limit_s: float | None = None, reason: str = "trainer.max_walltime"):
        self.requested = ""
        """What asked for the end, in words; "" while nothing has."""
        self.forced = False
        self._limit_s, self._reason = limit_s, reason
        self._at_once = True
        self._before: dict[int, Any] = {}
        self._timer: threading.Timer | None = None

    def __enter__(self) -> Stop:
        if threading.current_thread() is threading.main_thread():  # elsewhere Python hears no signals
            self._before = {number: signal.getsignal(number) for number in SIGNALS}
            self.listen()
            if self._limit_s is not None:
                self._timer = threading.Timer(max(0.0, self._limit_s), self._late)
                self._timer.daemon = True
                self._timer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def listen(self) -> None:
        """Take the signals; again after Ray has started, which sets a handler of its own."""
        if self._before:
            for number in SIGNALS:
                signal.signal(number, self._take)

    @property
    def saves(self) -> bool:
        """Whether the end was asked for in a way that leaves time to save."""
        return bool(self.requested) and not self.forced

    def check(self) -> None:
        """Raises Interrupted if an end was asked for."""
        if self.requested:
            raise Interrupted(self.requested)

    @contextmanager
    def at_checks(self) -> Iterator[None]:
        """Within it a request waits for the next ``check``."""
        before, self._at_once = self._at_once, False
        try:
            yield
        finally:
            self._at_once = before

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Within it a request ends the block where it is, since nothing that it does must be kept."""
        before, self._at_once = self._at_once, True
        try:
            self.check()
            yield
        finally:
            self._at_once = before
        self.check()  # code of users may have caught what was raised

    def _take(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            if number == signal.SIGINT:
                self.forced = True
                raise KeyboardInterrupt
            return
        self.requested = self._reason if self._timed_out else signal.Signals(number).name
        # Not print: this may run in the middle of one
        os.write(2, f"{self.requested}: saving, and ending{'' if self._at_once else ' after this step'}\n".encode())
        if self._at_once:
            raise Interrupted(self.requested)

    _timed_out = False

    def _late(self) -> None:
        self._timed_out = True
        os.kill(os.getpid(), signal.SIGUSR1)


def build_stop(
    max_walltime: int | None, environ: Mapping[str, str] | None = None, clock: Callable[[], float] = time.time
) -> Stop:
    """``max_walltime`` in seconds; None is two minutes before the end that Slurm sets (at the half of a shorter time),
    and no limit elsewhere."""
    if max_walltime is not None:
        return Stop(max_walltime)
    end = (os.environ if environ is None else environ).get("SLURM_JOB_END_TIME", "")
    if not end.isdigit() or int(end) <= clock():
        return Stop()
    left = int(end) - clock()
    return Stop(max(left / 2, left - _BEFORE_SLURMS_END_S), reason="Slurm's time limit")
