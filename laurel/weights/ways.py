"""Ways that new weights take into an engine. Each ends in a comparison of what was sent with what the engine holds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol

import torch
from torch import Tensor, nn

from laurel.types import Fingerprint, LaurelError
from laurel.weights.buckets import BUCKET_BYTES, buckets, named_weights, tied_names
from laurel.weights.fingerprint import checksums


class HoldsWeights(Protocol):
    """The part of an engine that takes weights."""

    async def load_weights(self, version: int, buckets: Iterable[dict[str, Tensor]] | None) -> Fingerprint: ...


class SameMemory:
    """The engine runs the learner's own module: nothing moves, the engine only learns the version.

    Right for one rank, whose module holds whole tensors in the rollout dtype.
    """

    def __init__(self, module: nn.Module):
        self.module = module

    async def publish(self, engine: HoldsWeights, version: int) -> None:
        held = await engine.load_weights(version, None)
        sent = checksums(named_weights(self.module))
        verify(Fingerprint(version, sent), held, tied_names(self.module))


class Buckets:
    """Sharded tensors are gathered bucket by bucket into the engine's full copy. Collective: every rank publishes to
    an engine of its own."""

    def __init__(
        self, module: nn.Module, *, dtype: torch.dtype, device: torch.device | str, bucket_bytes: int = BUCKET_BYTES
    ):
        self.module, self.dtype, self.device, self.bucket_bytes = module, dtype, torch.device(device), bucket_bytes

    async def publish(self, engine: HoldsWeights, version: int) -> None:
        sent: dict[str, int] = {}
        stream = self._watched(sent)
        held = await engine.load_weights(version, stream)
        # An engine that stopped early must not leave the other ranks waiting in a collective
        for _ in stream:
            pass
        verify(Fingerprint(version, sent), held, tied_names(self.module))

    def _watched(self, sent: dict[str, int]) -> Iterator[dict[str, Tensor]]:
        """The buckets, fingerprinted before they are handed over."""
        for bucket in buckets(self.module, dtype=self.dtype, device=self.device, bucket_bytes=self.bucket_bytes):
            sent.update(checksums(bucket))
            yield bucket


def verify(sent: Fingerprint, held: Fingerprint, tied: Mapping[str, str] | None = None) -> None:
    """Raise LaurelError naming the tensors that an engine lost, kept in an old state, or holds though none was sent.

    ``tied`` maps names that share memory to the name that was sent; an engine may report either or both.
    """
    if sent.version != held.version:
        raise LaurelError(
            f"the engine says it holds weights of version {held.version}, but version {sent.version} was sent"
        )
    tied = tied or {}
    expected = dict(sent.tensors) | {name: sent.tensors[first] for name, first in tied.items() if first in sent.tensors}
    reported = {first for name, first in tied.items() if name in held.tensors} | held.tensors.keys()
    dropped = [name for name in sent.tensors if name not in reported]
    stale = [name for name, value in held.tensors.items() if name in expected and expected[name] != value]
    strange = [name for name in held.tensors if name not in expected]
    found = [
        f"{what} {', '.join(names[:4])}{f' and {len(names) - 4} more' if len(names) > 4 else ''}"
        for what, names in (("dropped", dropped), ("stale or altered", stale), ("never sent", strange))
        if names
    ]
    if found:
        raise LaurelError(
            f"weights of version {sent.version} did not arrive whole in the engine: {'; '.join(found)}. Sampling from "
            "them would train on another policy's text; this is a fault of the engine's load_weights"
        )
