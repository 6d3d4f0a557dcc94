"""When a GPU's memory runs out: the same work again in smaller pieces, instead of the end of the run."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch

from laurel.batch.token_batch import TokenBatch
from laurel.types import LaurelError

logger = logging.getLogger("laurel")
Result = TypeVar("Result")


def halves(micro: TokenBatch) -> list[TokenBatch]:
    """A micro-batch cut between rows into two of about as many tokens; itself if it has one row."""
    if micro.row_count == 1:
        return [micro]
    middle = micro.token_count / 2
    ends = micro.cu_seqlens[1:-1].tolist()
    cut = min(range(len(ends)), key=lambda row: abs(ends[row] - middle)) + 1
    return [micro.select(range(cut)), micro.select(range(cut, micro.row_count))]


class SmallerPieces:
    """Runs work on micro-batches, and again on halves of them whenever memory runs out, on one rank.

    What was too large once is cut from the start the next time. Several ranks compute in step with each other, so one
    of them cannot begin anew: there the error says what to lower.
    """

    def __init__(self, ranks: int, budget: str):
        """``budget``: the setting that bounds a micro-batch, for the error."""
        self.ranks, self.budget = ranks, budget
        self.cuts = 0
        """How often memory ran out; a micro-batch is cut into as many as 2 to the power of it."""

    def run(self, micro_batches: Sequence[TokenBatch], work: Callable[[list[list[TokenBatch]]], Result]) -> Result:
        """``work`` gets a list of pieces for each micro-batch, and must leave nothing behind if it fails."""
        while True:
            pieces = [self._cut(micro) for micro in micro_batches]
            try:
                return work(pieces)
            except torch.OutOfMemoryError as error:
                most = max((piece.row_count for parts in pieces for piece in parts), default=0)
                if self.ranks > 1 or most <= 1:
                    raise LaurelError(self._cure(pieces)) from error
            # Only here are the failed work's tensors free: an exception holds on to all that it passed through
            gc.collect()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
            self.cuts += 1
            logger.warning(
                "the GPU's memory ran out: the step goes on with micro-batches cut into %d; a lower %s spares that",
                2**self.cuts,
                self.budget,
            )

    def _cut(self, micro: TokenBatch) -> list[TokenBatch]:
        pieces = [micro]
        for _ in range(self.cuts):
            pieces = [half for piece in pieces for half in halves(piece)]
        return pieces

    def _cure(self, pieces: list[list[TokenBatch]]) -> str:
        longest = max(piece.token_count for parts in pieces for piece in parts)
        return (
            f"the GPU's memory ran out in a forward and backward of {longest} tokens; lower {self.budget} (never below "
            "one trajectory), set model.enable_gradient_checkpointing=True, or lower data.max_response_length"
        )
