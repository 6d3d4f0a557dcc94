"""Advantages from comparing the trajectories of one prompt. One number per row, the same at all its sampled tokens.

All take token ``rewards`` (T,), ``response_mask`` bool (T,), ``cu_seqlens`` (N + 1,) where rows begin,
``weight`` (N,) and ``group`` (N,). R is the sum of a row's token rewards. Everywhere a group of one keeps its R, as it
has nothing to be compared with; a group whose rows are all equal gets exactly 0; rows of weight 0 belong to no group; a
NaN or infinite reward is an error that names the row. ``returns`` equal the advantages.
"""

from __future__ import annotations

import numpy as np
from torch import Tensor

from laurel.algos.advantages.groups import Groups
from laurel.algos.advantages.rows import Floats, SampledTokens, refuse_nan

EPS = 1e-6  # what is added to a standard deviation


def grpo(
    *, rewards: Tensor, response_mask: Tensor, cu_seqlens: Tensor, weight: Tensor, group: Tensor, norm_by_std: bool
) -> dict[str, Tensor]:
    """Group-relative advantages. Shao et al. 2024 (DeepSeekMath, arXiv:2402.03300), section 4.1.2::

        A = (R - mean(R of its group)) / (std(R of its group) + 1e-6)

    ``std`` has Bessel's correction. ``norm_by_std=False`` leaves the division out (Dr.GRPO, Liu et al. 2025,
    arXiv:2503.20783). As in verl.

    Example: one group with R 0, 1, 2: mean 1, std 1, so the advantages are -1, 0, 1.
    """
    tokens, groups, total = _totals(rewards, response_mask, cu_seqlens, weight, group)
    return _everywhere(tokens, normalised(groups, total, norm_by_std=norm_by_std))


def rloo(
    *, rewards: Tensor, response_mask: Tensor, cu_seqlens: Tensor, weight: Tensor, group: Tensor
) -> dict[str, Tensor]:
    """REINFORCE leave-one-out. Ahmadian et al. 2024 (arXiv:2402.14740)::

        A_i = R_i - mean(R of the other rows of its group) = (R_i - mean(R of its group)) * n / (n - 1)

    As in verl.

    Example: one group with R 0, 1, 5: others' means are 3, 2.5, 0.5, so the advantages are -3, -1.5, 4.5.
    """
    tokens, groups, total = _totals(rewards, response_mask, cu_seqlens, weight, group)
    scale = groups.each(groups.sizes / np.maximum(groups.sizes - 1, 1))
    return _everywhere(tokens, scale * groups.centred(total))


def opo(
    *, rewards: Tensor, response_mask: Tensor, cu_seqlens: Tensor, weight: Tensor, group: Tensor
) -> dict[str, Tensor]:
    """On-policy optimal baseline. Hao et al. 2025 (OPO, arXiv:2505.23585)::

        A_i = R_i - sum_j(l_j * R_j) / sum_j(l_j)        l: sampled tokens of a row, j over its group

    The baseline of least variance if the squared norm of a row's gradient grows with its length. As in verl.

    Example: one group, R 0 with 1 token and R 4 with 3 tokens: the baseline is 3, so the advantages are -3 and 1.
    """
    tokens, groups, total = _totals(rewards, response_mask, cu_seqlens, weight, group)
    return _everywhere(tokens, groups.centred(total, shares=tokens.counts.astype(np.float64)))


def gpg(
    *, rewards: Tensor, response_mask: Tensor, cu_seqlens: Tensor, weight: Tensor, group: Tensor
) -> dict[str, Tensor]:
    """Group policy gradient. Chu et al. 2025 (GPG, arXiv:2504.02546), with F_norm = 1::

        A = alpha * (R - mean(R of its group))        alpha = rows of the batch / rows of it with R other than 0

    The paper's alpha makes up for rows whose gradient is 0. Counting those with R = 0 is verl's reading of it, and what
    its users know. No row with R other than 0: every advantage is 0.

    Example: two groups with R 0, 2 and 0, 4: alpha = 4 / 2, so the advantages are -2, 2, -4, 4.
    """
    tokens, groups, total = _totals(rewards, response_mask, cu_seqlens, weight, group)
    rewarded = np.count_nonzero(total[tokens.counted])
    return _everywhere(tokens, tokens.counted.sum() / max(1, rewarded) * groups.centred(total))


def grpo_passk(
    *, rewards: Tensor, response_mask: Tensor, cu_seqlens: Tensor, weight: Tensor, group: Tensor, norm_by_std: bool
) -> dict[str, Tensor]:
    """Pass@k: what counts is a group's best row, and what is lost without it. Tang et al. 2025 (arXiv:2503.19595)::

        A = (R - second best R of its group) / (std(R of its group) + 1e-6)  for the best row,  else 0

    ``norm_by_std=False`` leaves the division out. As in verl, which however refuses a group of one. Two best rows are
    each replaceable by the other: all get 0.

    Example, without the division: one group with R 1, 4, 3 gives 0, 1, 0.
    """
    tokens, groups, total = _totals(rewards, response_mask, cu_seqlens, weight, group)
    falling = groups.rows[np.lexsort((-total[groups.rows], groups.member[groups.rows]))]
    best = falling[groups.starts]
    several = groups.sizes > 1
    second = np.zeros(best.size)
    second[several] = total[falling[groups.starts[several] + 1]]
    gain = total[best] - second
    if norm_by_std:
        gain = np.where(several, gain / (groups.stds(total) + EPS), gain)
    advantage = np.zeros(total.size)
    advantage[best] = gain
    return _everywhere(tokens, advantage)


def normalised(groups: Groups, values: Floats, *, norm_by_std: bool) -> Floats:
    """(N,): GRPO's comparison of ``values`` (N,) within groups."""
    centred = groups.centred(values)
    if not norm_by_std:
        return centred
    return np.where(groups.alone, centred, centred / (groups.each(groups.stds(values)) + EPS))


def _totals(
    rewards: Tensor, response_mask: Tensor, cu_seqlens: Tensor, weight: Tensor, group: Tensor
) -> tuple[SampledTokens, Groups, Floats]:
    """The counted tokens, the groups of counted rows, and R (N,)."""
    tokens = SampledTokens.of(response_mask, cu_seqlens, weight)
    total = tokens.row_sums(rewards)
    refuse_nan("rewards", total, tokens.counted)
    return tokens, Groups.of(group, tokens.counted), total


def _everywhere(tokens: SampledTokens, of_row: Floats) -> dict[str, Tensor]:
    advantages = tokens.spread(of_row)
    return {"advantages": advantages, "returns": advantages}
