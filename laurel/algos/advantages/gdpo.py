"""Advantages from several reward heads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from torch import Tensor

from laurel.algos.advantages.group import normalised
from laurel.algos.advantages.groups import Groups
from laurel.algos.advantages.rows import SampledTokens, refuse_nan, whiten


def gdpo(
    *,
    heads: Mapping[str, Tensor],
    head_weights: Sequence[float],
    response_mask: Tensor,
    cu_seqlens: Tensor,
    weight: Tensor,
    group: Tensor,
    norm_by_std: bool,
) -> dict[str, Tensor]:
    """Each reward head compared within its group on its own, so that a large one does not drown the others. Liu et al.
    2026 (GDPO, arXiv:2601.05242)::

        a_k = (R_k - mean(R_k of its group)) / (std(R_k of its group) + 1e-6)        for each head k
        A = (a - mean(a)) / sqrt(var(a) + 1e-8)        a = sum over k of w_k * a_k, at each sampled token

    ``heads`` maps a name to the head's score of each row (N,), ``head_weights`` has w in the same order; mean and
    variance of a are over all sampled tokens of the batch. ``norm_by_std=False`` leaves out the division by std. As in
    verl: token rewards, and so a KL penalty among them, are not read. A group of one keeps its R_k; a head that is the
    same for a whole group gives it 0. A NaN or infinite score is an error that names head and row.

    Example: one group of three rows of one token, weights 1 and 0.5, heads 0, 1, 2 and 30, 10, 20: a_k is -1, 0, 1 and
    1, -1, 0; a is -0.5, -0.5, 1, its mean 0 and its deviation 0.866, so the advantages are -0.577, -0.577, 1.155.
    """
    if not heads or len(head_weights) != len(heads):
        raise ValueError(f"{len(head_weights)} weights for {len(heads)} reward heads; give one for each, and one head")
    tokens = SampledTokens.of(response_mask, cu_seqlens, weight)
    groups = Groups.of(group, tokens.counted)
    total = np.zeros(tokens.counts.size)
    for (name, scores), share in zip(heads.items(), head_weights, strict=True):
        of_row = scores.cpu().numpy().astype(np.float64)
        refuse_nan(f"scores {name!r}", of_row, tokens.counted)
        total += share * normalised(groups, np.where(tokens.counted, of_row, 0.0), norm_by_std=norm_by_std)
    advantages = tokens.spread(whiten(total, tokens.counts))
    return {"advantages": advantages, "returns": advantages}
