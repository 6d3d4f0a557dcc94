"""Losses that clip the ratio of the current to the old policy: of a token, of a row, or the weight of a gradient."""

from __future__ import annotations

import torch
from torch import Tensor

from laurel.algos.policy_loss.ratio import LARGEST_LOG_RATIO, clipped_surrogate, log_ratios, row_means, share


def vanilla(
    *,
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    clip_low: float,
    clip_high: float,
    clip_c: float,
    **_: Tensor,
) -> tuple[Tensor, dict[str, Tensor]]:
    """PPO's clipped loss with a dual clip.

    Schulman et al. 2017 (arXiv:1707.06347), equation 7, with separate ranges below and above (DAPO, Yu et al. 2025,
    arXiv:2503.14476, section 3.1), and Ye et al. 2020 (arXiv:1912.09729, dual-clip PPO) for negative advantages::

        ratio = exp(log_probs - old_log_probs)          (the difference kept in [-20, 20])
        clipped = max(-A * ratio, -A * clip(ratio, 1 - clip_low, 1 + clip_high))
        loss = min(clipped, -A * clip_c)  if A < 0  else  clipped

    Watched: ``pg_clipfrac`` (1 where the clipped branch was taken, as A > 0 and ratio above the range or A < 0 and
    below it) and ``pg_clipfrac_lower`` (1 where the dual clip was taken).

    Example, ranges 0.2 and c = 3: A = 1, ratio 1.5 gives -1.2 (clipped); A = 1, ratio 0.5 gives -0.5;
    A = -1, ratio 0.5 gives 0.8 (clipped); A = -1, ratio 5 gives 3 (dual clip).
    """
    log_ratio = log_ratios(log_probs, old_log_probs)
    clipped, taken = clipped_surrogate(log_ratio.exp(), advantages, clip_low, clip_high)
    floor = -advantages * clip_c
    negative = advantages < 0
    losses = torch.where(negative, torch.minimum(clipped, floor), clipped)
    return losses, {
        "pg_clipfrac": share(taken, losses),
        "pg_clipfrac_lower": share((clipped > floor) & negative, losses),
        "ppo_kl": -log_ratio.detach(),
    }


def gspo(
    *,
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    row_of_token: Tensor,
    weight: Tensor,
    clip_low: float,
    clip_high: float,
    **_: Tensor,
) -> tuple[Tensor, dict[str, Tensor]]:
    """PPO's clip of the ratio of a whole row, per token. Zheng et al. 2025 (GSPO, arXiv:2507.18071).

    Equation 7 is the geometric mean of the ratios of a row's sampled tokens, and equations 13 and 14 (GSPO-token) send
    its gradient to the token itself; sg stops the gradient::

        s = exp(mean over t of (log_probs_t - old_log_probs_t))
        s_t = sg(s) * exp(log_probs_t - sg(log_probs_t))
        loss_t = max(-A_t * s_t, -A_t * clip(s_t, 1 - clip_low, 1 + clip_high))

    Where all tokens of a row have one advantage and one weight, this is GSPO itself (equation 5), in value and
    gradient. The paper's mean over rows is ``loss_agg_mode=seq-mean-token-mean``, its ranges are 3e-4 and 4e-4.

    Example, ranges 0.2: a row with ratios 4 and 1 has s = 2; with A = 1 its tokens lose -1.2 each (clipped), with
    A = -1 they lose 2 each.
    """
    log_ratio = log_ratios(log_probs, old_log_probs)
    of_row = row_means(log_probs.detach() - old_log_probs, mask, row_of_token, weight.numel())
    kept = of_row.clamp(-LARGEST_LOG_RATIO, LARGEST_LOG_RATIO)[row_of_token]
    ratio = (kept + log_probs - log_probs.detach()).exp()
    losses, taken = clipped_surrogate(ratio, advantages, clip_low, clip_high)
    return losses, {"pg_clipfrac": share(taken, losses), "ppo_kl": -log_ratio.detach()}


def geo_mean(
    *,
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    row_of_token: Tensor,
    weight: Tensor,
    clip_low: float,
    clip_high: float,
    **_: Tensor,
) -> tuple[Tensor, dict[str, Tensor]]:
    """The geometric mean of a row's clipped ratios. Zhao et al. 2025 (GMPO, arXiv:2507.20673), its objective with
    token-level clipping, in log space::

        d_t = log_probs_t - old_log_probs_t             (kept in [-20, 20])
        c_t = min(d_t, clip(d_t, -clip_low, clip_high))  if A > 0,  else  max(d_t, clip(d_t, -clip_low, clip_high))
        loss_t = -A * exp(mean over t of c_t)

    A is the mean of the row's advantages (the paper has one for each row), and every sampled token of the row carries
    its loss, so ``loss_agg_mode=seq-mean-token-mean`` is the paper's mean over rows. The ranges are those of log
    ratios: 0.4 as in the paper lets ratios go from exp(-0.4) to exp(0.4).

    ``pg_clipfrac``: 1 where the clip was taken.

    Example, ranges 0.5: log ratios 1 and 0.1 with A = 2 are kept as 0.5 and 0.1, mean 0.3: each token loses
    -2 exp(0.3) = -2.700. With A = -2 they stay 1 and 0.1, mean 0.55: 2 exp(0.55) = 3.467.
    """
    rows = weight.numel()
    log_ratio = log_ratios(log_probs, old_log_probs)
    advantage = row_means(advantages, mask, row_of_token, rows)
    near = log_ratio.clamp(-clip_low, clip_high)
    good = (advantage > 0)[row_of_token]
    kept = torch.where(good, torch.minimum(log_ratio, near), torch.maximum(log_ratio, near))
    of_row = -advantage * row_means(kept, mask, row_of_token, rows).exp()
    losses = of_row[row_of_token]
    return losses, {"pg_clipfrac": share(kept != log_ratio, losses), "ppo_kl": -log_ratio.detach()}


def cispo(
    *,
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    clip_low: float,
    clip_high: float,
    **_: Tensor,
) -> tuple[Tensor, dict[str, Tensor]]:
    """The policy gradient with a clipped importance weight. MiniMax 2025 (CISPO, arXiv:2506.13585), equations 4 and 5;
    sg stops the gradient::

        loss = -sg(clip(ratio, 1 - clip_low, 1 + clip_high)) * A * log_probs

    The clip bounds how much a token counts and never silences it, unlike PPO's. The paper sets no lower limit, which is
    any ``clip_low`` from 1.

    ``pg_clipfrac``: 1 where the weight was clipped.

    Example, ranges 0.2: A = 2, log_probs -1, ratio 1.5 give 1.2 * 2 = 2.4, with gradient -2.4.
    """
    log_ratio = log_ratios(log_probs, old_log_probs)
    ratio = log_ratio.detach().exp()
    kept = ratio.clamp(1.0 - clip_low, 1.0 + clip_high)
    losses = -kept * advantages * log_probs
    return losses, {"pg_clipfrac": share(kept != ratio, losses), "ppo_kl": -log_ratio.detach()}
