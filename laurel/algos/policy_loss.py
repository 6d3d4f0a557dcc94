"""Policy losses: one loss per token, and what to watch about it."""

from __future__ import annotations

import torch
from torch import Tensor


def vanilla(
    *,
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    clip_low: float,
    clip_high: float,
    clip_c: float,
) -> tuple[Tensor, dict[str, Tensor]]:
    """PPO's clipped loss with a dual clip; all tensors (T,).

    Schulman et al. 2017 (arXiv:1707.06347), equation 7, with separate ranges below and above (DAPO, Yu et al. 2025,
    arXiv:2503.14476, section 3.1), and Ye et al. 2020 (arXiv:1912.09729, dual-clip PPO) for negative advantages::

        ratio = exp(log_probs - old_log_probs)          (the difference kept in [-20, 20])
        clipped = max(-A * ratio, -A * clip(ratio, 1 - clip_low, 1 + clip_high))
        loss = min(clipped, -A * clip_c)  if A < 0  else  clipped

    Returns the loss per token, and per token: ``pg_clipfrac`` (1 where the clipped branch was taken, as A > 0 and ratio
    above the range or A < 0 and below it), ``pg_clipfrac_lower`` (1 where the dual clip was taken), ``ppo_kl``
    (old - new log-probability: k1 from the old to the new policy).

    Example, ranges 0.2 and c = 3: A = 1, ratio 1.5 gives -1.2 (clipped); A = 1, ratio 0.5 gives -0.5;
    A = -1, ratio 0.5 gives 0.8 (clipped); A = -1, ratio 5 gives 3 (dual clip).
    """
    log_ratio = (log_probs - old_log_probs).clamp(-20.0, 20.0)
    ratio = log_ratio.exp()
    free = -advantages * ratio
    bounded = -advantages * ratio.clamp(1.0 - clip_low, 1.0 + clip_high)
    clipped = torch.maximum(free, bounded)
    floor = -advantages * clip_c
    negative = advantages < 0
    losses = torch.where(negative, torch.minimum(clipped, floor), clipped)
    return losses, {
        "pg_clipfrac": (bounded > free).to(losses.dtype).detach(),
        "pg_clipfrac_lower": ((clipped > floor) & negative).to(losses.dtype).detach(),
        "ppo_kl": -log_ratio.detach(),
    }
