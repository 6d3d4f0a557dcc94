"""Advantages from the rewards that follow a token, without a value model: REINFORCE with a baseline.

All take token ``rewards`` (T,), ``response_mask`` bool (T,), ``cu_seqlens`` (N + 1,) where rows begin and
``weight`` (N,). Tokens of the environment (tool answers) are skipped, and rows of weight 0 are in no mean. A NaN or
infinite number is an error that names the row.
"""

from __future__ import annotations

import numpy as np
from torch import Tensor

from laurel.algos.advantages.groups import Groups
from laurel.algos.advantages.rows import Floats, SampledTokens, discounted_suffix_sums, refuse_nan, whiten


def reinforce_plus_plus(
    *, rewards: Tensor, response_mask: Tensor, cu_seqlens: Tensor, weight: Tensor, gamma: float
) -> dict[str, Tensor]:
    """REINFORCE++. Hu et al. 2025 (arXiv:2501.03262): returns, whitened over all sampled tokens::

        returns_t = r_t + gamma * returns_(t+1)        A = (returns - mean) / sqrt(var + 1e-8)

    As in verl, but a return runs on across tool answers (verl's ends before each of them). Groups play no part. Fewer
    than two sampled tokens, or equal returns, give 0.

    Example: rows with rewards 0, 1 and gamma 0.5, and 2: returns 0.5, 1 and 2, mean 1.167, deviation 0.764, so the
    advantages are -0.873, -0.218 and 1.091.
    """
    tokens, rewards_to_go = _rewards_to_go(rewards, response_mask, cu_seqlens, weight, gamma)
    return {"advantages": tokens.unpack(whiten(rewards_to_go)), "returns": tokens.unpack(rewards_to_go)}


def reinforce_plus_plus_baseline(
    *, rewards: Tensor, response_mask: Tensor, cu_seqlens: Tensor, weight: Tensor, group: Tensor
) -> dict[str, Tensor]:
    """REINFORCE++ with the group's mean as baseline. Hu et al. 2025 (arXiv:2501.03262)::

        A = (a - mean(a)) / sqrt(var(a) + 1e-8)        a = R - mean(R of its group), at each sampled token

    R is the sum of a row's token rewards; mean and variance of a are over all sampled tokens of the batch. As in verl:
    a group of one has a = R. A group whose rows are all equal has a = 0, and if all groups do, A is 0.

    Example: one group, R 0 and 4, one token each: a is -2 and 2, the deviation 2.828: -0.707 and 0.707.
    """
    tokens = SampledTokens.of(response_mask, cu_seqlens, weight)
    total = tokens.row_sums(rewards)
    refuse_nan("rewards", total, tokens.counted)
    centred = Groups.of(group, tokens.counted).centred(total)
    advantages = tokens.spread(whiten(centred, tokens.counts))
    return {"advantages": advantages, "returns": advantages}


def remax(
    *, rewards: Tensor, response_mask: Tensor, cu_seqlens: Tensor, weight: Tensor, greedy_scores: Tensor
) -> dict[str, Tensor]:
    """ReMax: the score of the prompt's greedy answer is the baseline. Li et al. 2023 (arXiv:2310.10505)::

        returns_t = r_t + returns_(t+1)        A_t = returns_t - greedy score

    ``greedy_scores`` (N,) is the raw score of that answer, without a KL penalty. As in verl. Groups play no part.

    Example: token rewards -0.5, 2 and a greedy score of 1: returns 1.5, 2, advantages 0.5, 1.
    """
    tokens, rewards_to_go = _rewards_to_go(rewards, response_mask, cu_seqlens, weight, 1.0)
    greedy = greedy_scores.cpu().numpy().astype(np.float64)
    refuse_nan("greedy_scores", greedy, tokens.counted)
    baseline = np.repeat(greedy, tokens.counts)
    return {"advantages": tokens.unpack(rewards_to_go - baseline), "returns": tokens.unpack(rewards_to_go)}


def _rewards_to_go(
    rewards: Tensor, response_mask: Tensor, cu_seqlens: Tensor, weight: Tensor, gamma: float
) -> tuple[SampledTokens, Floats]:
    tokens = SampledTokens.of(response_mask, cu_seqlens, weight)
    refuse_nan("rewards", tokens.row_sums(rewards), tokens.counted)
    return tokens, discounted_suffix_sums(tokens.pack(rewards), tokens.counts, gamma)
