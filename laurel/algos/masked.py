"""Sums, means and whitening over the tokens that a mask selects.

What the mask leaves out is never read: an infinite or NaN value at a prompt token, an environment token or a row of
weight 0 changes no result. That is why values are selected, not multiplied by 0.
"""

from __future__ import annotations

import torch
from torch import Tensor


def active_tokens(mask: Tensor, row_of_token: Tensor, weight: Tensor) -> Tensor:
    """(T,) bool: tokens that the policy sampled, in rows whose weight (N,) is above 0."""
    return mask & (weight > 0)[row_of_token]


def masked_sum(values: Tensor, mask: Tensor) -> Tensor:
    """Scalar sum of ``values`` where ``mask`` is True, both (T,)."""
    return torch.where(mask, values, 0.0).sum()


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Scalar mean of ``values`` where ``mask`` is True, both (T,). An empty mask is an error."""
    count = mask.sum()
    if count == 0:
        raise ValueError("a mean over no tokens is undefined: the mask selects nothing")
    return masked_sum(values, mask) / count


def masked_whiten(values: Tensor, mask: Tensor, eps: float = 1e-8) -> Tensor:
    """``(x - mean) / sqrt(var + eps)`` over the selected tokens, 0 elsewhere; (T,) in and out.

    ``var`` has Bessel's correction, as PPO users know it. Fewer than two selected tokens, or equal ones, give 0.

    Example: values 1, 2, 3 have mean 2 and variance 1, so they become -1, 0, 1.
    """
    count = mask.sum()
    if count < 2:
        return torch.zeros_like(values)
    centred = torch.where(mask, values - masked_mean(values, mask), 0.0)
    variance = centred.square().sum() / (count - 1)
    return centred * torch.rsqrt(variance + eps)


def row_sums(values: Tensor, mask: Tensor, row_of_token: Tensor, row_count: int) -> Tensor:
    """(N,): for each row the sum of its selected tokens; 0 for a row that has none."""
    selected = torch.where(mask, values, 0.0)
    return torch.zeros(row_count, dtype=selected.dtype, device=selected.device).index_add(0, row_of_token, selected)
