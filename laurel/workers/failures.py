"""What a rank leaves in its own log: who it is, and the traceback of every call of it that failed.

Ray hands an actor's exception to whoever called it and writes it nowhere. When the driver is gone, or has seen only the
ranks that lost their partner, the log of the process is where the cause can still be read. ``laurel logs`` and
``laurel stacks`` look for these lines.
"""

from __future__ import annotations

import faulthandler
import functools
import inspect
import os
import re
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any, TypeVar

STACKS_SIGNAL = signal.SIGUSR2  # SIGUSR1 is what schedulers send before they requeue a job
THIS_IS = re.compile(r"^laurel: this is rank (?P<rank>\d+) of (?P<world>\d+) on node (?P<ip>\S+) \(pid (?P<pid>\d+)\)")
FAILED = re.compile(r"^laurel: rank (?P<rank>\d+|\?) \(pid (?P<pid>\d+)\) failed in (?P<call>\w+) at (?P<time>\S+)$")

Actor = TypeVar("Actor", bound=type)


def introduce(rank: int, world: int, ip: str) -> None:
    """Write who this process is."""
    _write(f"laurel: this is rank {rank} of {world} on node {ip} (pid {os.getpid()})")


def stacks_on_signal() -> None:
    """From now on STACKS_SIGNAL makes this process write the stack of every thread to its stderr."""
    faulthandler.register(STACKS_SIGNAL, file=2, all_threads=True, chain=False)


def writes_failures(actor: Actor) -> Actor:
    """Class decorator: an exception in a method is written to stderr, with rank and time, before it goes on its way."""
    for name, method in list(vars(actor).items()):
        if inspect.isfunction(method) and (name == "__init__" or not name.startswith("_")):
            setattr(actor, name, _writing(method))
    return actor


def _writing(method: Callable[..., Any]) -> Callable[..., Any]:
    if inspect.isgeneratorfunction(method):

        @functools.wraps(method)
        def stream(self: Any, *args: Any, **kwargs: Any) -> Iterator[Any]:
            try:
                yield from method(self, *args, **kwargs)
            except Exception:
                _write_failure(self, method.__name__)
                raise

        return stream

    @functools.wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return method(self, *args, **kwargs)
        except Exception:
            _write_failure(self, method.__name__)
            raise

    return call


def _write_failure(actor: Any, call: str) -> None:
    rank = getattr(getattr(actor, "host", None), "rank", "?")
    time = datetime.now(UTC).isoformat(timespec="milliseconds")
    _write(f"laurel: rank {rank} (pid {os.getpid()}) failed in {call} at {time}\n{traceback.format_exc()}")


def _write(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
