"""What every engine offers: completions per request, weights by version, memory given back and taken again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, Protocol

from torch import Tensor

from laurel.types import Completion, Fingerprint, LaurelError, Request


class EngineError(LaurelError):
    """A request or a change of state that an engine refuses; it names the request or state and the cure."""


class Engine(Protocol):
    """One replica. Requests may come in any order and number; each result depends on its own request alone."""

    async def generate(self, request: Request) -> Completion:
        """The completion of ``request``. Raises what went wrong in the engine, for every request that was pending."""

    async def abort(self, ids: Sequence[str]) -> None:
        """End these requests with what they have, finish reason "abort"; unknown or finished ids are left alone."""

    async def load_weights(self, version: int, buckets: Iterable[Mapping[str, Tensor]] | None) -> Fingerprint:
        """Take ``buckets`` of named tensors as policy ``version``; None if the weights already are in this memory.

        The fingerprint is computed on the tensors as they lie in the engine afterwards.
        """

    async def sleep(self) -> None:
        """Give the KV cache's memory back; an EngineError if requests are pending."""

    async def wake(self, what: Literal["weights", "cache"]) -> None:
        """Take memory for weights or for the KV cache again."""
