"""Signals of a node: they go to the training where there is one, and else end the wait."""

from __future__ import annotations

import signal
import subprocess
import threading
from types import FrameType

ENDING = (signal.SIGTERM, signal.SIGINT)


class Signals:
    """``stop`` is set by the first SIGTERM or SIGINT that has no training to go to; ``code`` is then 128 + its number.

    ``sent`` is the last that went to the training. SIGUSR1 is for the training alone; without one it is dropped.
    """

    def __init__(self) -> None:
        self.stop = threading.Event()
        self.code = 0
        self.sent = 0
        self.training: subprocess.Popen[bytes] | None = None
        for number in (*ENDING, signal.SIGUSR1):
            signal.signal(number, self._take)

    def _take(self, number: int, frame: FrameType | None) -> None:
        training = self.training
        if training is not None and training.poll() is None:
            training.send_signal(number)
            self.sent = number
        elif number in ENDING:
            self.code = self.code or 128 + number
            self.stop.set()


def exit_code(returncode: int) -> int:
    """A child's code as a shell reports it: 128 + N for signal N."""
    return returncode if returncode >= 0 else 128 - returncode
