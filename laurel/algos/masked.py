"""Sums over the tokens that a mask selects, with their gradient and on any device.

What the mask leaves out is never read: an infinite or NaN value at a prompt token, an environment token or a row of
weight 0 changes no result. That is why values are selected, not multiplied by 0.
"""

from __future__ import annotations

import torch
from torch import Tensor


def active_tokens(mask: Tensor, row_of_token: Tensor, weight: Tensor) -> Tensor:
    """(T,) bool: tokens that the policy sampled, in rows whose weight (N,) is above 0."""
    return mask & (weight > 0)[row_of_token]


def row_sums(values: Tensor, mask: Tensor, row_of_token: Tensor, row_count: int) -> Tensor:
    """(N,): for each row the sum of its selected tokens; 0 for a row that has none."""
    selected = torch.where(mask, values, 0.0)
    return torch.zeros(row_count, dtype=selected.dtype, device=selected.device).index_add(0, row_of_token, selected)
