"""The policy that samples is not quite the one that learns: how far both are apart, and what corrects for it.

``ratio = exp(old_log_probs - rollout_log_probs)`` says how much likelier the learner, before its update, finds a token
than the engine that sampled it. It differs from 1 by other kernels and precision, and by weights that are older. Its
logarithm is kept in [-20, 20]. Per token (T,), per row (N,); ``active`` are the sampled tokens of rows that count.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from laurel.algos.masked import active_tokens, row_sums
from laurel.batch.token_batch import TokenBatch
from laurel.config.correction import RolloutCorrection

LARGEST_LOG_RATIO = 20.0
DIFF, LARGEST_DIFF = "rollout/log_prob_diff/mean", "rollout/log_prob_diff/max"
RATIO, CHI2 = "rollout_corr/ratio/mean", "rollout_corr/chi2_token"


def log_ratios(*, old_log_probs: Tensor, rollout_log_probs: Tensor, active: Tensor) -> Tensor:
    """(T,): ``old - rollout`` at active tokens, kept in [-20, 20]; 0 elsewhere."""
    difference = torch.where(active, old_log_probs - rollout_log_probs, 0.0)
    return difference.clamp(-LARGEST_LOG_RATIO, LARGEST_LOG_RATIO)


def row_log_ratios(log_ratio: Tensor, *, active: Tensor, row_of_token: Tensor, row_count: int, level: str) -> Tensor:
    """(T,) log ratio that a token is judged by: its own (``token``), its row's sum (``sequence``), or the row's mean
    (``geometric``), over active tokens.

    Example: log ratios 0.2, 0.4 of one row give (0.2, 0.4), (0.6, 0.6), (0.3, 0.3).
    """
    if level == "token":
        return log_ratio
    of_row = row_sums(log_ratio, active, row_of_token, row_count)
    if level == "geometric":
        lengths = row_sums(torch.ones_like(log_ratio), active, row_of_token, row_count)
        of_row = of_row / lengths.clamp(min=1.0)
    return torch.where(active, of_row[row_of_token], 0.0).clamp(-LARGEST_LOG_RATIO, LARGEST_LOG_RATIO)


def truncated_weights(judged: Tensor, *, active: Tensor, threshold: float) -> Tensor:
    """(T,) ``min(ratio, threshold)`` at active tokens, 0 elsewhere: truncated importance sampling.

    Ionides 2008, "Truncated importance sampling"; as rho in IMPALA (Espeholt et al. 2018, arXiv:1802.01561, equation
    1). A weight per token is biased and of low variance; the product over a row (``judged`` by sequence) is the
    unbiased one.

    Example, threshold 2: ratios 0.5, 1, 4 give 0.5, 1, 2.
    """
    return torch.where(active, judged.exp().clamp(max=threshold), 0.0)


def normalized(weights: Tensor, *, active: Tensor, row_of_token: Tensor, row_count: int, level: str) -> Tensor:
    """(T,) weights divided by their mean: over active tokens, or over rows if a row has one weight (``sequence``).

    Example: weights 0.5, 1, 2 have mean 3.5 / 3 and become 0.429, 0.857, 1.714. Rows (1, 1), (3) by sequence have mean
    2 and become (0.5, 0.5), (1.5).
    """
    units = active.to(weights.dtype)
    if level == "sequence":
        units = units / row_sums(units, active, row_of_token, row_count).clamp(min=1.0)[row_of_token]
    mean = (weights * units).sum() / units.sum().clamp(min=1.0)
    return torch.where(mean > 0, weights / mean, weights)


def within(judged: Tensor, *, lower: float, upper: float) -> Tensor:
    """(T,) bool: whether the ratio lies in [lower, upper]: two-sided masking. Liu et al. 2025, "When Speed Kills
    Stability" (https://richardli.xyz/rl-collapse). Example, 0.5 to 2: ratios 0.4, 1, 3 give False, True, False.
    """
    ratio = judged.exp()
    return (ratio >= lower) & (ratio <= upper)


def vetoed(log_ratio: Tensor, *, active: Tensor, row_of_token: Tensor, row_count: int, threshold: float) -> Tensor:
    """(T,) bool: tokens of rows in which some active token has a ratio below ``threshold``: there the engine took a
    token that the learner finds all but impossible.

    Example, 0.01: of rows (1, 0.001) and (1, 1) both tokens of the first.
    """
    bad = (active & (log_ratio.exp() < threshold)).double()
    return row_sums(bad, active, row_of_token, row_count)[row_of_token] > 0


def gauge_parts(*, old_log_probs: Tensor, rollout_log_probs: Tensor, active: Tensor, count: float) -> dict[str, Tensor]:
    """The gauge of some of a batch's ``count`` active tokens: metrics that add up over parts of it, but for the largest
    difference.

    Mean and largest ``|old - rollout|``; k3 of the engine's policy from the learner's, ``mean(ratio - 1 - log ratio)``
    (J. Schulman 2020, http://joschu.net/blog/kl-approx.html); the mean ratio, and the chi-squared divergence
    ``mean(ratio^2) - 1``.

    Example: ratios 1 and 2: mean 0.693 / 2 = 0.347, largest 0.693, k3 0.307 / 2 = 0.153, ratio 1.5, 5 / 2 - 1 = 1.5.
    """
    difference = torch.where(active, old_log_probs - rollout_log_probs, 0.0).double()
    log_ratio = difference.clamp(-LARGEST_LOG_RATIO, LARGEST_LOG_RATIO)
    ratio = log_ratio.exp()
    parts = {
        DIFF: difference.abs(),
        "rollout_corr/k3_kl": ratio - 1.0 - log_ratio,
        RATIO: ratio,
        CHI2: ratio.square() - 1.0,
    }
    return {name: torch.where(active, part, 0.0).sum() / max(count, 1.0) for name, part in parts.items()} | {
        LARGEST_DIFF: difference.abs().max()
    }


def effective_sample_size(metrics: Mapping[str, float]) -> dict[str, float]:
    """From the gauge of a whole batch, as a fraction of its tokens: ``mean(ratio)^2 / mean(ratio^2)`` (Kong 1992), 1
    where every token counts the same. Example: ratios 1 and 2 give 2.25 / 2.5 = 0.9.
    """
    if CHI2 not in metrics:
        return {}
    squares = 1.0 + metrics[CHI2]
    return {"rollout_corr/eff_sample_size": metrics[RATIO] ** 2 / squares if squares > 0 else 1.0}


def gauge(batch: TokenBatch) -> dict[str, float]:
    """The gauge of a batch that has both log-probabilities; nothing of one that has not."""
    active = active_tokens(batch.response_mask, batch.row_of_token, batch.weight)
    if not (batch.has("old_log_probs") and batch.has("rollout_log_probs") and bool(active.any())):
        return {}
    found = gauge_parts(
        old_log_probs=batch.old_log_probs,
        rollout_log_probs=batch.rollout_log_probs,
        active=active,
        count=float(active.sum()),
    )
    metrics = {name: float(value) for name, value in found.items()}
    return metrics | effective_sample_size(metrics)


@dataclass(frozen=True)
class NoCorrection:
    """Every sampled token trains with weight 1. ``measures`` is off where the engine's log-probabilities are the old
    ones, which says nothing of how far both are apart: then the learner measures in its first update."""

    measures: bool = True

    def apply(self, batch: TokenBatch) -> tuple[TokenBatch, dict[str, float]]:
        return batch, gauge(batch) if self.measures else {}


@dataclass(frozen=True)
class Correction:
    """Weighs the losses of tokens and leaves tokens out (``algorithm.rollout_correction``).

    ``weigh`` and ``reject`` name a level of ``row_log_ratios``, or are None. A token trains if it lies in [lower,
    upper] and its row is not vetoed.
    """

    weigh: str | None
    threshold: float
    normalize: bool
    reject: str | None
    lower: float
    upper: float
    veto: float | None

    def apply(self, batch: TokenBatch) -> tuple[TokenBatch, dict[str, float]]:
        """The batch to train on, and metrics. It has a smaller response_mask, weight 0 for rows with no token left, and
        ``rollout_is_weights`` (T,) float32 if losses are weighted.

        Advantages were taken before: what is left out still counts in the mean of its group, say.
        """
        rows, where = batch.row_count, batch.row_of_token
        active = active_tokens(batch.response_mask, where, batch.weight)
        log_ratio = log_ratios(
            old_log_probs=batch.old_log_probs, rollout_log_probs=batch.rollout_log_probs, active=active
        ).double()

        def judged(level: str) -> Tensor:
            return row_log_ratios(log_ratio, active=active, row_of_token=where, row_count=rows, level=level)

        kept = active
        if self.reject is not None:
            kept = kept & within(judged(self.reject), lower=self.lower, upper=self.upper)
        if self.veto is not None:
            kept = kept & ~vetoed(log_ratio, active=active, row_of_token=where, row_count=rows, threshold=self.veto)
        left = row_sums(kept.double(), kept, where, rows) > 0
        lost = ~left & (row_sums(active.double(), active, where, rows) > 0)
        trained = batch.with_(response_mask=batch.response_mask & kept, weight=torch.where(lost, 0.0, batch.weight))
        metrics = gauge(batch) | self._rejected(batch, active, kept)
        if self.weigh is not None:
            weights = truncated_weights(judged(self.weigh), active=kept, threshold=self.threshold)
            if self.normalize:
                weights = normalized(weights, active=kept, row_of_token=where, row_count=rows, level=self.weigh)
            trained = trained.with_(rollout_is_weights=weights.float())
            if bool(kept.any()):
                metrics["rollout_corr/rollout_is_mean"] = float(weights[kept].mean())
                metrics["rollout_corr/rollout_is_max"] = float(weights[kept].max())
        return trained, metrics

    def _rejected(self, batch: TokenBatch, active: Tensor, kept: Tensor) -> dict[str, float]:
        if self.reject is None and self.veto is None:
            return {}
        rows, where = batch.row_count, batch.row_of_token
        sampled = row_sums(active.double(), active, where, rows)
        touched = row_sums((active & ~kept).double(), active, where, rows) > 0
        return {
            "rollout_corr/rollout_rs_masked_fraction": float((active & ~kept).sum() / active.sum().clamp(min=1)),
            "rollout_corr/rollout_rs_seq_masked_fraction": float(touched.sum() / (sampled > 0).sum().clamp(min=1)),
        }


def build_correction(settings: RolloutCorrection) -> Correction | NoCorrection:
    if not settings.corrects:
        return NoCorrection(measures=not settings.bypass_mode)
    upper = settings.rollout_rs_threshold or 1.0  # which algos/check.py asks for where it is read
    lower = settings.rollout_rs_threshold_lower
    return Correction(
        weigh=settings.rollout_is,
        threshold=settings.rollout_is_threshold,
        normalize=settings.rollout_is_batch_normalize,
        reject=settings.rollout_rs,
        lower=1.0 / upper if lower is None else lower,
        upper=upper,
        veto=settings.rollout_token_veto_threshold,
    )
