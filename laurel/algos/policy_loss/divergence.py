"""Losses that stop a token where the policy has moved too much probability, whatever its ratio. Qi et al. 2026 (DPPO,
arXiv:2602.04879), equation 12: a token counts ``-A * ratio`` unless its update leads further away (A > 0 and ratio > 1,
or A < 0 and ratio < 1) and the divergence D at it is above its limit; then it counts 0.

D compares the sampled token with all others together, so it needs only that token's probability under both policies.
The limits are ``clip_low`` for tokens that become less likely and ``clip_high`` for those that become likelier. The
ratio is not truncated, which the paper finds harmful (section 5.4); verl truncates it at ``clip_ratio_c``.

The paper measures D and the ratio against the policy that sampled: with ``rollout_correction.bypass_mode=True`` the
engine's log-probabilities are the old ones. Without it they are the learner's before its updates, and with one update
per batch no token is ever stopped.
"""

from __future__ import annotations

import torch
from torch import Tensor

from laurel.algos.policy_loss.ratio import log_ratios, share

SMALLEST_REST = 1e-8
"""Least probability of all other tokens together, so that its logarithm is a number."""


def dppo_tv(
    *,
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    clip_low: float,
    clip_high: float,
    **_: Tensor,
) -> tuple[Tensor, dict[str, Tensor]]:
    """D is the total variation ``|p - p_old|`` (equation 13).

    ``pg_clipfrac``: 1 where the token was stopped.

    Example, limits 0.2, A = 1: p_old 0.01 and p 0.1 give -10, though PPO would clip at 1.2; p_old 0.5 and p 0.8 give 0.
    """
    divergence = (log_probs.exp() - old_log_probs.exp()).abs().detach()
    return _stopped(log_probs, old_log_probs, advantages, divergence, clip_low, clip_high)


def dppo_kl(
    *,
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    clip_low: float,
    clip_high: float,
    **_: Tensor,
) -> tuple[Tensor, dict[str, Tensor]]:
    """D is ``p_old log(p_old / p) + (1 - p_old) log((1 - p_old) / (1 - p))``, in nats (equation 14).

    ``pg_clipfrac``: 1 where the token was stopped.

    Example, limits 0.1, A = 1: p_old 0.5 and p 0.8 have D = 0.5 log(0.625) + 0.5 log(2.5) = 0.223 and give 0; p 0.6 has
    D = 0.0204 and gives -1.2.
    """
    new, old = log_probs.detach(), old_log_probs
    divergence = old.exp() * (old - new) - old.expm1() * (_log_rest(old) - _log_rest(new))
    return _stopped(log_probs, old_log_probs, advantages, divergence, clip_low, clip_high)


def _log_rest(log_probs: Tensor) -> Tensor:
    """log(1 - p), also where p is nearly 1."""
    return (-log_probs.expm1()).clamp(min=SMALLEST_REST).log()


def _stopped(
    log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, divergence: Tensor, low: float, high: float
) -> tuple[Tensor, dict[str, Tensor]]:
    log_ratio = log_ratios(log_probs, old_log_probs)
    likelier, less_likely = log_ratio > 0, log_ratio < 0
    stopped = ((advantages > 0) & likelier & (divergence > high)) | (
        (advantages < 0) & less_likely & (divergence > low)
    )
    losses = torch.where(stopped, 0.0, -advantages * log_ratio.exp())
    return losses, {"pg_clipfrac": share(stopped, losses), "ppo_kl": -log_ratio.detach()}
