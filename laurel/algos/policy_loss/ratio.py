"""The ratio of the current to the old policy, and PPO's clip of it."""

from __future__ import annotations

import torch
from torch import Tensor

from laurel.algos.masked import row_sums

LARGEST_LOG_RATIO = 20.0
"""So that one token cannot overflow the loss; beyond it the gradient is 0."""


def log_ratios(log_probs: Tensor, old_log_probs: Tensor) -> Tensor:
    """(T,): ``log_probs - old_log_probs``, kept in [-20, 20]."""
    return (log_probs - old_log_probs).clamp(-LARGEST_LOG_RATIO, LARGEST_LOG_RATIO)


def clipped_surrogate(ratio: Tensor, advantages: Tensor, clip_low: float, clip_high: float) -> tuple[Tensor, Tensor]:
    """``max(-A * ratio, -A * clip(ratio, 1 - clip_low, 1 + clip_high))`` and where the clip was taken, both (T,).

    Example, ranges 0.2: A = 1 and ratio 1.5 give -1.2, taken; A = -1 and ratio 1.5 give 1.5, not taken.
    """
    free = -advantages * ratio
    bounded = -advantages * ratio.clamp(1.0 - clip_low, 1.0 + clip_high)
    return torch.maximum(free, bounded), bounded > free


def row_means(values: Tensor, mask: Tensor, row_of_token: Tensor, row_count: int) -> Tensor:
    """(N,): for each row the mean of its selected tokens; 0 for a row that has none."""
    lengths = row_sums(torch.ones_like(values), mask, row_of_token, row_count)
    return row_sums(values, mask, row_of_token, row_count) / lengths.clamp(min=1.0)


def share(condition: Tensor, like: Tensor) -> Tensor:
    """(T,) 1 where ``condition`` holds, for a metric that is the fraction of tokens."""
    return condition.to(like.dtype).detach()
