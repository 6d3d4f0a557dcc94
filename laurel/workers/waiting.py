"""Waiting for the ranks: never silent for long, and the first cause of a failure is what the user sees."""

from __future__ import annotations

import asyncio
import math
import re
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from ray import ObjectRef
from ray.exceptions import RayActorError, RayError, RayTaskError

from laurel.types import LaurelError
from laurel.workers.debugger import Paused, paused
from laurel.workers.session import Say

REPORT_EVERY_S = 30.0
_OTHERS_S = 2.0  # after a first failure, how long others may still say that they failed before
_LOG_LINES = 20
_PREAMBLE = (":job_id:", ":actor_name:", "laurel: this is")  # Ray's own first lines, and the rank's
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")

# A rank whose partner died fails in a collective; that is a consequence, never the cause.
_CONSEQUENCES = (
    "connection closed by peer",
    "connection reset",
    "connection refused",
    "broken pipe",
    "socket closed",
    "timed out waiting",
    "nccl",
    "gloo",
    "distbackenderror",
    "diststoreerror",
    "distnetworkerror",
)


class WorkerError(LaurelError):
    """A rank died, or its code raised; the message names rank and node and holds the cause."""


@dataclass(frozen=True)
class Member:
    """One rank as it described itself. ``gpu`` is its GPU's uuid and ``gpu_index`` that GPU's number
    on the node, ``log`` the file that its stderr goes to there, ``memory`` the bytes that its GPU has free for it."""

    rank: int
    ip: str
    node_id: str
    host: str
    pid: int
    device: str
    threads: int
    gpu: str = ""
    gpu_index: int = 0
    log: str = ""
    memory: int = 0

    def __str__(self) -> str:
        return f"rank {self.rank} on node {self.ip} (pid {self.pid})"


def gather(
    refs: Sequence[ObjectRef], members: Sequence[Member], what: str, *, say: Say = print, deadline_s: float = math.inf
) -> list[Any]:
    """What each rank answered, in rank order. Raises WorkerError, or a rank's own LaurelError, without waiting for
    ranks that may hang in a collective because another one failed; a WorkerError that names the ranks that did not
    answer within ``deadline_s``."""
    rank_of = {ref: rank for rank, ref in enumerate(refs)}
    answers: list[Any] = [None] * len(refs)
    pending = list(refs)
    start = time.monotonic()
    reported = start
    while pending:
        ready, pending = ray.wait(pending, num_returns=1, timeout=min(REPORT_EVERY_S, deadline_s))
        for ref in ready:
            try:
                answers[rank_of[ref]] = ray.get(ref)
            except RayError as error:
                failures = [(rank_of[ref], error), *_further_failures(pending, rank_of)]
                raise first_cause(failures, members, what) from None
        now = time.monotonic()
        late = [members[rank_of[ref]] for ref in pending]
        if late and now - start >= deadline_s:
            line = still_waiting(late, what, now - start)
            raise WorkerError(f"{line}. That is the limit, trainer.placement_timeout; see the Ray logs of these nodes")
        if late and now - reported >= REPORT_EVERY_S:
            reported = now
            say(still_waiting(late, what, now - start) + attach_to(late))
    return answers


def _further_failures(pending: list[ObjectRef], rank_of: dict[ObjectRef, int]) -> list[tuple[int, RayError]]:
    ready, _ = ray.wait(pending, num_returns=len(pending), timeout=_OTHERS_S) if pending else ([], [])
    failures = []
    for ref in ready:
        try:
            ray.get(ref)
        except RayError as error:
            failures.append((rank_of[ref], error))
    return failures


async def next_reply(stream: Any, member: Member, what: str, *, say: Say = print) -> Any:
    """The next item of a rank's streaming reply. Raises StopAsyncIteration at its end, errors as ``gather`` does."""

    async def fetch() -> Any:
        return await (await anext(stream))

    task = asyncio.ensure_future(fetch())
    start = time.monotonic()
    try:
        while not (await asyncio.wait({task}, timeout=REPORT_EVERY_S))[0]:
            say(still_waiting([member], what, time.monotonic() - start) + attach_to([member]))
        return task.result()
    except RayError as error:
        raise first_cause([(0, error)], [member], what) from None
    finally:
        task.cancel()


def still_waiting(members: Sequence[Member], what: str, waited_s: float) -> str:
    """Example: ``Waiting 30 s for the actor's update: rank 3 on node 10.0.0.2 (pid 77)``."""
    names = ", ".join(str(member) for member in members[:4])
    more = f" and {len(members) - 4} more" if len(members) > 4 else ""
    return f"Waiting {waited_s:.0f} s for {what}: {names}{more}"


def attach_to(members: Sequence[Member]) -> str:
    """Where a debugger can attach, if one of these ranks waits for it; else ""."""
    places = {(member.ip, member.pid): member.rank for member in members}
    waiting: list[tuple[int, Paused]] = []
    with suppress(RayError, RuntimeError, OSError):  # words beside a wait, which the cluster's tables may not delay
        waiting = [(places[one.ip, one.pid], one) for one in paused() if (one.ip, one.pid) in places]
    return "".join(f"; rank {rank} is paused, attach a debugger to {one.ip}:{one.port}" for rank, one in waiting)


def is_consequence(text: str) -> bool:
    """Whether an error's type and message say that another rank failed first."""
    return any(sign in text.lower() for sign in _CONSEQUENCES)


def first_cause(failures: Sequence[tuple[int, RayError]], members: Sequence[Member], what: str) -> LaurelError:
    """One error out of the (rank, error) pairs that arrived, in order of arrival.

    A process that died explains ranks that lost their connection, so it comes first; then code that raised; ranks whose
    collective broke come last.
    """
    rank, error = min(failures, key=lambda failure: _distance_from_cause(failure[1]))
    member = members[rank]
    others = len(failures) - 1
    also = f"\n({others} other rank{'s' * (others != 1)} failed with it)" if others else ""
    if isinstance(error, RayTaskError) and isinstance(error.cause, LaurelError):
        return error.cause
    text = _COLOUR.sub("", str(error)).strip() or type(error).__name__
    if isinstance(error, RayActorError) and not error.actor_init_failed:
        # Ray heads its message with a list of ids; what happened stands in the last line
        return WorkerError(f"{member} died in {what}: {text.splitlines()[-1].strip()}{last_lines(member)}{also}")
    return WorkerError(f"{member} failed in {what}:\n{text}{also}")


def _distance_from_cause(error: RayError) -> int:
    if isinstance(error, RayTaskError):
        return 2 if is_consequence(f"{type(error.cause).__name__}: {error.cause}") else 1
    return 0 if isinstance(error, RayActorError) else 1


def last_lines(member: Member) -> str:
    """The end of what the rank wrote to stderr, if its log lies on this machine; else where it is."""
    if not member.log:
        return ""
    if member.host != socket.gethostname():
        return f"\nIts log is {member.log} on node {member.ip}"
    try:
        lines = Path(member.log).read_text(errors="replace").splitlines()
    except OSError:
        return ""
    lines = [line for line in lines if not line.startswith(_PREAMBLE)][-_LOG_LINES:]
    return f"\nThe end of its log {member.log}:\n" + "\n".join(lines) if lines else ""
