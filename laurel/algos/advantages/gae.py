"""Advantages from a value model."""

from __future__ import annotations

from torch import Tensor

from laurel.algos.advantages.rows import SampledTokens, discounted_suffix_sums, refuse_nan, whiten


def gae(
    *,
    rewards: Tensor,
    values: Tensor,
    response_mask: Tensor,
    cu_seqlens: Tensor,
    weight: Tensor,
    gamma: float,
    lam: float,
) -> dict[str, Tensor]:
    """Generalized advantage estimation. Schulman et al. 2016 (arXiv:1506.02438), equation 16.

    ``values[t]`` is the value of the state in which token t was chosen. Over the sampled tokens of a row, in order::

        delta_t = r_t + gamma * V_(t+1) - V_t        A_t = delta_t + gamma * lam * A_(t+1)        returns_t = A_t + V_t

    Past the last sampled token V and A are 0, also when the length limit ended the response. Tokens of the environment
    (tool answers) are skipped: the next state of a sampled token is that of the next sampled token. ``returns`` are
    taken before the advantages are whitened over all sampled tokens.

    Example, before whitening: rewards 0, 1, values 0.5, 0.25, gamma = lam = 1 give advantages 0.5, 0.75, returns 1, 1.
    """
    tokens = SampledTokens.of(response_mask, cu_seqlens, weight)
    refuse_nan("rewards", tokens.row_sums(rewards), tokens.counted)
    refuse_nan("values", tokens.row_sums(values), tokens.counted)

    value = tokens.pack(values)
    surprise = tokens.pack(rewards)
    surprise -= value
    if value.size:
        following = gamma * value[1:]
        following[tokens.firsts[(tokens.counts > 0) & (tokens.firsts > 0)] - 1] = 0.0  # a row's last token has no next
        surprise[:-1] += following
    raw = discounted_suffix_sums(surprise, tokens.counts, gamma * lam)
    return {"advantages": tokens.unpack(whiten(raw)), "returns": tokens.unpack(raw + value)}
