"""KL divergence between the policy and the reference: estimators, penalty in the reward, controllers of its weight.

All estimators see one sampled token x ~ policy and d = log policy(x) - log reference(x). They follow J. Schulman,
"Approximating KL Divergence" (2020, http://joschu.net/blog/kl-approx.html), with r = reference(x) / policy(x).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from laurel.algos.masked import active_tokens, row_sums
from laurel.batch.token_batch import TokenBatch


def k1(log_probs: Tensor, ref_log_probs: Tensor) -> Tensor:
    """``d``: unbiased, of either sign, high variance. Example: probabilities 0.5 and 0.25 give log 2 = 0.693."""
    return log_probs - ref_log_probs


def absolute(log_probs: Tensor, ref_log_probs: Tensor) -> Tensor:
    """``|d|``: an upper bound on k1, not an estimate of KL. Example: 0.25 and 0.5 give log 2 = 0.693."""
    return (log_probs - ref_log_probs).abs()


def k2(log_probs: Tensor, ref_log_probs: Tensor) -> Tensor:
    """``d^2 / 2``: biased, low variance; its gradient is that of KL. Example: 0.5 and 0.25 give 0.240."""
    return 0.5 * (log_probs - ref_log_probs).square()


def k3(log_probs: Tensor, ref_log_probs: Tensor) -> Tensor:
    """``r - 1 - log r``: unbiased, never negative. Example: 0.5 and 0.25 give 0.5 - 1 + 0.693 = 0.193.

    log r is kept in [-20, 20] and the result in [-10, 10], the limits PPO and GRPO users know, so that one token
    cannot overflow the loss; outside them the gradient is 0.
    """
    log_ratio = (ref_log_probs - log_probs).clamp(-20.0, 20.0)
    return (log_ratio.exp() - 1.0 - log_ratio).clamp(-10.0, 10.0)


KlEstimate = Callable[[Tensor, Tensor], Tensor]


def straight_through(value: KlEstimate, log_probs: Tensor, ref_log_probs: Tensor) -> Tensor:
    """The number of ``value`` with the gradient of k2, which is ``d`` (a KL as a loss; verl's names with a ``+``).

    Over tokens x of the policy, the mean of ``d * grad log policy(x)`` is the gradient of KL(policy, reference). The
    means of the gradients of k1 and k3 are not: that of k1 is 0, that of k3 is the gradient of KL(reference, policy).

    Example: probabilities 0.5 and 0.25, value k1: 0.693, with derivative 0.693 in log_probs (k1's own is 1).
    """
    slope = k2(log_probs, ref_log_probs)
    return value(log_probs, ref_log_probs).detach() + (slope - slope.detach())


KL_ESTIMATORS: dict[str, KlEstimate] = {
    "kl": k1,
    "abs": absolute,
    "mse": k2,
    "low_var_kl": k3,
    "kl+": partial(straight_through, k1),
    "abs+": partial(straight_through, absolute),
    "low_var_kl+": partial(straight_through, k3),
}


def token_kl(batch: TokenBatch, estimator: str = "kl") -> Tensor:
    """(T,): KL estimate at each sampled token before the update, 0 elsewhere. Needs old_log_probs, ref_log_probs."""
    mask = active_tokens(batch.response_mask, batch.row_of_token, batch.weight)
    # Selected first: an estimator must not see what a prompt token holds.
    old = torch.where(mask, batch.old_log_probs, 0.0)
    ref = torch.where(mask, batch.ref_log_probs, 0.0)
    return KL_ESTIMATORS[estimator](old, ref)


def mean_kl(batch: TokenBatch, estimator: str = "kl") -> float:
    """KL per token: the mean over each row's sampled tokens, then over rows. What AdaptiveKl steers."""
    mask = active_tokens(batch.response_mask, batch.row_of_token, batch.weight)
    kl = token_kl(batch, estimator).double()
    lengths = row_sums(mask.double(), mask, batch.row_of_token, batch.row_count)
    per_row = row_sums(kl, mask, batch.row_of_token, batch.row_count) / lengths.clamp(min=1)
    return float(per_row.sum() / (lengths > 0).sum().clamp(min=1))


def token_rewards(batch: TokenBatch, kl_coef: float, estimator: str = "kl") -> Tensor:
    """(T,) rewards: ``-kl_coef * KL_t`` at every sampled token, plus the row's score at its last sampled token.

    Ouyang et al. 2022 (InstructGPT), equation 2, token by token. With ``kl_coef=0`` no log-probabilities are read.
    A row without a sampled token carries no reward. A NaN or infinite score of a row that counts is an error.

    Example: score 1, kl_coef 0.1, two sampled tokens with KL 0.5 and 0.2 give -0.05 and 0.98.
    """
    counted = batch.weight > 0
    broken = counted & ~batch.score.isfinite()
    if bool(broken.any()):
        raise ValueError(
            f"score of rows {batch.index[broken].tolist()[:8]} is {batch.score[broken].tolist()[:8]}; "
            "the reward function must return finite numbers"
        )
    mask = active_tokens(batch.response_mask, batch.row_of_token, batch.weight)
    place = torch.arange(batch.token_count, device=mask.device)
    last = torch.full((batch.row_count,), -1, dtype=torch.int64, device=mask.device).scatter_reduce(
        0, batch.row_of_token, torch.where(mask, place, -1), reduce="amax"
    )
    rewards = torch.zeros(batch.token_count, dtype=torch.float32, device=mask.device)
    ends = last >= 0
    rewards[last[ends]] = batch.score[ends].float()
    if kl_coef == 0:
        return rewards
    return rewards - kl_coef * token_kl(batch, estimator)


@dataclass(frozen=True)
class FixedKl:
    """Keeps the weight of the KL penalty."""

    def update(self, kl_coef: float, current_kl: float, n_trajectories: int) -> float:
        return kl_coef


@dataclass(frozen=True)
class AdaptiveKl:
    """Steers the weight so that KL per token stays near ``target_kl``. Ziegler et al. 2019, section 2.2.

    ``e = clip(current_kl / target_kl - 1, -0.2, 0.2)`` and ``kl_coef <- kl_coef * (1 + e * n_trajectories / horizon)``.
    ``horizon`` is in trajectories (the paper's K is 1 / horizon per trajectory).

    Example: kl_coef 0.1, KL twice the target, 1000 trajectories, horizon 10000: 0.1 * (1 + 0.2 * 0.1) = 0.102.
    """

    target_kl: float
    horizon: int

    def update(self, kl_coef: float, current_kl: float, n_trajectories: int) -> float:
        error = min(max(current_kl / self.target_kl - 1.0, -0.2), 0.2)
        return kl_coef * (1.0 + error * n_trajectories / self.horizon)


KlController = FixedKl | AdaptiveKl


@dataclass(frozen=True)
class KlInReward:
    """The reward carries a penalty for leaving the reference policy (``algorithm.use_kl_in_reward``)."""

    estimator: str
    controller: KlController

    def token_rewards(self, batch: TokenBatch, *, kl_coef: float) -> Tensor:
        return token_rewards(batch, kl_coef, self.estimator)

    def metrics(self, batch: TokenBatch, *, kl_coef: float) -> dict[str, float]:
        return {"critic/kl": mean_kl(batch, self.estimator), "critic/kl_coeff": kl_coef}

    def next_kl_coef(self, batch: TokenBatch, *, kl_coef: float) -> float:
        n_trajectories = int((batch.weight > 0).sum())
        return self.controller.update(kl_coef, mean_kl(batch, self.estimator), n_trajectories)


@dataclass(frozen=True)
class NoKlInReward:
    """The reward is the score alone, and ``kl_coef`` stays as it is."""

    def token_rewards(self, batch: TokenBatch, *, kl_coef: float) -> Tensor:
        return token_rewards(batch, 0.0)

    def metrics(self, batch: TokenBatch, *, kl_coef: float) -> dict[str, float]:
        return {}

    def next_kl_coef(self, batch: TokenBatch, *, kl_coef: float) -> float:
        return kl_coef
