"""What a GPU knows of the sequences in its slots, so that many steps run without asking the host."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from laurel.models.paged import PAGE
from laurel.types import FinishReason

MOST_STOPS = 16
"""Stop tokens of one request that a slot has room for."""

LIVE, STOPPED, FULL, BROKEN = range(4)
"""Values of ``status``. A slot that is not live is left alone by every step: idle, ended, or with broken logits."""
REASONS: dict[int, FinishReason] = {STOPPED: "stop", FULL: "length"}


@dataclass(frozen=True)
class SlotState:
    """Columns over slots; the last slot is nobody's: rows that only fill a graph's batch point to it.

    ``position`` (S,): of the last token, which the next step feeds. ``count`` (S,): tokens sampled so far, ``limit``
    how many there may be. ``out_tokens`` and ``out_log_probs`` (S, max_len): what was sampled. ``table`` (S, P) int32:
    the pages of each slot's tokens.
    """

    token: Tensor
    position: Tensor
    count: Tensor
    limit: Tensor
    seed: Tensor
    temperature: Tensor
    stops: Tensor
    status: Tensor
    out_tokens: Tensor
    out_log_probs: Tensor
    table: Tensor

    @staticmethod
    def empty(slots: int, max_len: int, device: torch.device | str) -> SlotState:
        def column(*shape: int, dtype: torch.dtype = torch.int64, fill: float = 0) -> Tensor:
            return torch.full((slots + 1, *shape), fill, dtype=dtype, device=device)

        return SlotState(
            token=column(),
            position=column(),
            count=column(),
            limit=column(),
            seed=column(),
            temperature=column(dtype=torch.float32),
            stops=column(MOST_STOPS, fill=-1),
            status=column(dtype=torch.int8, fill=STOPPED),
            out_tokens=column(max_len, dtype=torch.int32),
            out_log_probs=column(max_len, dtype=torch.float32),
            table=column(-(-max_len // PAGE), dtype=torch.int32),
        )
