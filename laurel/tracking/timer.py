"""Wall time of the phases of a step."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Timer:
    """Gathers seconds by phase; a phase entered twice adds up.

    Example::

        timer = Timer()
        with timer("gen"):
            ...
        timer.take()    # {"timing_s/gen": 1.23}, and the timer is empty again
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter):
        self._clock = clock
        self._seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        """Times the block, also when it raises."""
        start = self._clock()
        try:
            yield
        finally:
            self.add(phase, self._clock() - start)

    def add(self, phase: str, seconds: float) -> None:
        self._seconds[phase] = self._seconds.get(phase, 0.0) + seconds

    def take(self) -> dict[str, float]:
        """The metrics ``timing_s/<phase>`` gathered since the last call."""
        taken = {f"timing_s/{phase}": seconds for phase, seconds in self._seconds.items()}
        self._seconds = {}
        return taken
