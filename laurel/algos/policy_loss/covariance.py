"""Losses that spare the few tokens which cost the policy its entropy. Cui et al. 2025 (arXiv:2505.22617), section 4.

The entropy falls where log-probability and advantage are large together. For each of the N sampled tokens of a batch::

    cov_t = (log_probs_t - mean of log_probs) * (A_t - mean of A)

Which tokens are singled out (``chosen``) is decided once for each batch, before its first update, from old_log_probs
and over all ranks. So it depends neither on micro-batches nor on ranks. The paper takes the log-probabilities of the
current policy, which are the same at the first update, and chooses anew in each.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import torch
from torch import Tensor

from laurel.algos.masked import active_tokens
from laurel.algos.policy_loss.ratio import clipped_surrogate, log_ratios, share
from laurel.batch.token_batch import TokenBatch


def clip_cov(
    *,
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    chosen: Tensor,
    clip_low: float,
    clip_high: float,
    **_: Tensor,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Clip-Cov: PPO's clipped loss, and 0 at chosen tokens.

    ``pg_clipfrac``: 1 where the clip was taken; ``pg_covfrac``: 1 at chosen tokens.

    Example, ranges 0.2: A = 1 and ratio 1.1 give -1.1, and 0 if chosen.
    """
    log_ratio = log_ratios(log_probs, old_log_probs)
    losses, taken = clipped_surrogate(log_ratio.exp(), advantages, clip_low, clip_high)
    losses = torch.where(chosen, 0.0, losses)
    return losses, {
        "pg_clipfrac": share(taken, losses),
        "pg_covfrac": share(chosen, losses),
        "ppo_kl": -log_ratio.detach(),
    }


def kl_cov(
    *,
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    chosen: Tensor,
    kl_coef: float,
    **_: Tensor,
) -> tuple[Tensor, dict[str, Tensor]]:
    """KL-Cov: ``-A * ratio``, and at chosen tokens ``+ kl_coef * |log ratio|``, which holds them near the old policy.

    ``pg_covfrac``: 1 at chosen tokens.

    Example, kl_coef 0.1: A = 1 and ratio 2 give -2, and -2 + 0.0693 = -1.931 if chosen.
    """
    log_ratio = log_ratios(log_probs, old_log_probs)
    losses = -advantages * log_ratio.exp() + torch.where(chosen, kl_coef * log_ratio.abs(), 0.0)
    return losses, {"pg_covfrac": share(chosen, losses), "ppo_kl": -log_ratio.detach()}


def covariances(*, log_probs: Tensor, advantages: Tensor, active: Tensor) -> Tensor:
    """(T,) float64: ``cov_t`` of each active token, 0 elsewhere.

    Example: log_probs -1, -3 and A 1, -1 give 1 * 1 = 1 and -1 * -1 = 1; with A -1, 1 both are -1.
    """
    result = torch.zeros_like(advantages, dtype=torch.float64)
    new, advantage = log_probs[active].double(), advantages[active].double()
    if new.numel():
        result[active] = (new - new.mean()) * (advantage - advantage.mean())
    return result


def choose_top(covariance: Tensor, active: Tensor, ratio: float) -> Tensor:
    """(T,) bool: the ``ratio * N`` active tokens of largest covariance, at least one. Example: half of 3, 1, 2 is 3."""
    chosen = torch.zeros_like(active)
    places = active.nonzero()[:, 0]
    if places.numel():
        count = max(1, int(ratio * places.numel()))
        chosen[places[covariance[places].topk(count).indices]] = True
    return chosen


def choose_band(
    covariance: Tensor, active: Tensor, ratio: float, low: float, high: float, generator: torch.Generator
) -> Tensor:
    """(T,) bool: at most ``ratio * N`` active tokens, at least one, drawn from those with a covariance between ``low``
    and ``high``. Example: 0.5 of 3, 1, 2 between 2.5 and 5 is the 3; none of 0, 0, 0 is."""
    chosen = torch.zeros_like(active)
    places = (active & (covariance > low) & (covariance < high)).nonzero()[:, 0]
    count = max(1, int(ratio * int(active.sum())))
    chosen[places[torch.randperm(places.numel(), generator=generator)[:count]]] = True
    return chosen


@dataclass(frozen=True)
class ChooseTop:
    """The tokens that kl_cov holds. Without old_log_probs the ratio is 1 and there is nothing to hold."""

    ratio: float

    def __call__(self, batch: TokenBatch, *, step: int) -> Tensor | None:
        if not batch.has("old_log_probs"):
            return None
        active = active_tokens(batch.response_mask, batch.row_of_token, batch.weight)
        found = covariances(log_probs=batch.old_log_probs, advantages=batch.advantages, active=active)
        return choose_top(found, active, self.ratio)


@dataclass(frozen=True)
class ChooseBand:
    """The tokens that clip_cov leaves out. The draw is a function of seed and step alone."""

    ratio: float
    low: float
    high: float
    seed: int

    def __call__(self, batch: TokenBatch, *, step: int) -> Tensor | None:
        active = active_tokens(batch.response_mask, batch.row_of_token, batch.weight)
        found = covariances(log_probs=batch.old_log_probs, advantages=batch.advantages, active=active)
        digest = hashlib.blake2b(f"clip_cov/{self.seed}/{step}".encode(), digest_size=8).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest, "big") >> 1)
        return choose_band(found, active, self.ratio, self.low, self.high, generator)


@dataclass(frozen=True)
class ChooseNone:
    """The other losses single no token out: the batch gets no column."""

    def __call__(self, batch: TokenBatch, *, step: int) -> Tensor | None:
        return None


TokenChoice = ChooseTop | ChooseBand | ChooseNone
