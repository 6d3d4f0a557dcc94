"""The critic's loss."""

from __future__ import annotations

import torch
from torch import Tensor


def clipped_value_loss(
    *, values: Tensor, old_values: Tensor, returns: Tensor, clip_range: float
) -> tuple[Tensor, dict[str, Tensor]]:
    """Squared error whose gain from a large change of the value is cut off; all tensors (T,).

    The value loss of PPO's reference code (Schulman et al. 2017; Engstrom et al. 2020, arXiv:2005.12729, section 3)::

        near = clip(V, V_old - clip_range, V_old + clip_range)
        loss = max((V - returns)^2, (near - returns)^2) / 2

    Returns the loss per token, and per token ``vf_clipfrac``: 1 where the clipped branch was the larger.

    Example, clip_range 0.5, V_old 0, returns 2: V = 1 gives near 0.5 and loss 2.25 / 2 = 1.125 (clipped);
    V = 0.25 gives 1.75^2 / 2 = 1.53125.
    """
    near = torch.clamp(values, old_values - clip_range, old_values + clip_range)
    free, bounded = (values - returns).square(), (near - returns).square()
    return 0.5 * torch.maximum(free, bounded), {"vf_clipfrac": (bounded > free).to(values.dtype).detach()}
