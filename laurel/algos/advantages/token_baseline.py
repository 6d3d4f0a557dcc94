"""Advantages with a baseline of its own for every token."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from laurel.algos.advantages.groups import Groups
from laurel.algos.advantages.rows import Floats, Ints, SampledTokens, discounted_suffix_sums, refuse_nan

EPS = 1e-8  # what is added to a sum of weights


def optimal_token_baseline(
    *,
    rewards: Tensor,
    response_mask: Tensor,
    cu_seqlens: Tensor,
    weight: Tensor,
    group: Tensor,
    logit_grad_squares: Tensor,
) -> dict[str, Tensor]:
    """The baseline of least variance for each token of a group. Li et al. 2026 (arXiv:2602.07078)::

        G_t = r_t + G_(t+1)        W_t = w_1 + ... + w_t        w_t = 1 - 2 pi_t + sum over the vocabulary of pi^2
        B_t = sum_j(G_jt * W_jt) / (sum_j(W_jt) + 1e-8)        A_t = G_t - B_t        returns = G

    j are the rows of the group that reach their t-th sampled token (tool answers are not counted). w_t, which
    ``logit_grad_squares`` (T,) holds, is the squared norm of the gradient of log pi_t in the logits; W_t stands for
    that of the whole path so far. As in verl: where fewer than two rows of a group reach t (the end of its longest row,
    and a group of one), B is 0, so A is G. For single turns this is verl's optimal_token_baseline, for several turns
    its tir_optimal_token_baseline. Weights of a rollout correction are not in W (verl multiplies w by their squares).

    Example: one group, R 1 with one token of w 0.5, and R 0 with two tokens of w 1.5 and 1: B_1 = 0.5 / 2 = 0.25, B_2
    = 0, so the advantages are 0.75 and -0.25, 0.
    """
    tokens = SampledTokens.of(response_mask, cu_seqlens, weight)
    refuse_nan("rewards", tokens.row_sums(rewards), tokens.counted)
    refuse_nan("logit_grad_squares", tokens.row_sums(logit_grad_squares), tokens.counted)
    groups = Groups.of(group, tokens.counted)
    rewards_to_go = discounted_suffix_sums(tokens.pack(rewards), tokens.counts, 1.0)
    path = _prefix_sums(tokens.pack(logit_grad_squares), tokens.counts)

    # A table of groups and places, flat: each token's cell
    width = max(1, int(tokens.counts.max(initial=0)))
    cell = np.arange(path.size) + np.repeat(groups.member * width - tokens.firsts, tokens.counts)
    cells = groups.sizes.size * width
    weighted = np.bincount(cell, rewards_to_go * path, minlength=cells)
    baseline = (weighted / (np.bincount(cell, path, minlength=cells) + EPS)).reshape(-1, width)
    baseline[np.arange(width) >= _second_longest(groups, tokens.counts)[:, None]] = 0.0
    advantages = rewards_to_go - baseline.ravel()[cell]
    return {"advantages": tokens.unpack(advantages), "returns": tokens.unpack(rewards_to_go)}


def _prefix_sums(values: Floats, counts: Ints) -> Floats:
    """(M,): ``s_t = x_1 + ... + x_t`` within each row."""
    return discounted_suffix_sums(values[::-1], counts[::-1], 1.0)[::-1]


def _second_longest(groups: Groups, counts: Ints) -> Ints:
    """(G,): sampled tokens of each group's second longest row; 0 for a group of one."""
    falling = groups.rows[np.lexsort((-counts[groups.rows], groups.member[groups.rows]))]
    several = groups.sizes > 1
    second = np.zeros(groups.sizes.size, dtype=np.int64)
    second[several] = counts[falling[groups.starts[several] + 1]]
    return second
