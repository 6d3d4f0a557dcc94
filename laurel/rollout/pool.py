"""Several engines as one: which replica answers is decided by a prompt's place in its batch, never by load."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

from laurel.rollout.engine import EngineError
from laurel.types import Completion, Request


class Generates(Protocol):
    """The part of an engine, or of a client of a remote one, that the pool needs."""

    async def generate(self, request: Request) -> Completion: ...

    async def abort(self, ids: Sequence[str]) -> None: ...


class EnginePool:
    """Replicas in a fixed order. All samples of a prompt go to replica ``position % replicas``, so that they share its
    prefill and a run gives the same tokens every time."""

    def __init__(self, engines: Sequence[Generates]):
        if not engines:
            raise EngineError("an engine pool needs at least one engine; give one per learner rank")
        self.engines = tuple(engines)

    async def generate(self, position: int, request: Request) -> Completion:
        """The completion of ``request``, whose prompt is at ``position`` of its batch."""
        return await self.engines[position % len(self.engines)].generate(request)

    async def abort(self, ids: Sequence[str]) -> None:
        """End these requests wherever they run."""
        await asyncio.gather(*(engine.abort(ids) for engine in self.engines))
