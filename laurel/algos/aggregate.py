"""From token losses to one number that any split into micro-batches and ranks leaves unchanged.

Each mode is a weight per token. The loss of a micro-batch is the weighted sum of its token losses; the counts that
divide are those of the whole optimizer update over all ranks (``token_count``: sampled tokens, ``row_count``:
trajectories), so micro-batch losses and their gradients simply add up.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from laurel.algos.masked import active_tokens, row_sums


@dataclass(frozen=True)
class Tokens:
    """What the aggregations know of a micro-batch, and of the update it is a part of."""

    mask: Tensor  # bool (T,): sampled tokens
    row_of_token: Tensor  # int64 (T,)
    weight: Tensor  # float (N,): rows of weight 0 contribute nothing
    token_count: float
    row_count: float
    scale: float  # constant length of seq-mean-token-sum-norm, in tokens

    @property
    def active(self) -> Tensor:
        return active_tokens(self.mask, self.row_of_token, self.weight)

    def mean(self, values: Tensor) -> Tensor:
        """This micro-batch's part of the mean of ``values`` (T,) over all sampled tokens of the update."""
        return weighted_sum(values, token_mean(self), self.active)


def token_mean(tokens: Tokens) -> Tensor:
    """Every token counts the same: ``w / token_count``. Example: losses (1, 2), (6): 9 / 3 = 3."""
    return tokens.weight[tokens.row_of_token] / tokens.token_count


def token_sum(tokens: Tokens) -> Tensor:
    """Every token counts 1, nothing divides: ``w``. Example: losses (1, 2), (6): 9."""
    return tokens.weight[tokens.row_of_token]


def seq_mean_token_sum(tokens: Tokens) -> Tensor:
    """Mean over rows of the sum over tokens: ``w / row_count``. Example: losses (1, 2), (6): (3 + 6) / 2 = 4.5."""
    return tokens.weight[tokens.row_of_token] / tokens.row_count


def seq_mean_token_mean(tokens: Tokens) -> Tensor:
    """Mean over rows of the mean over tokens: ``w / (row_count * length)``, Shao et al. 2024, equation 3.

    Example: losses (1, 2), (6): (1.5 + 6) / 2 = 3.75.
    """
    ones = torch.ones_like(tokens.weight)[tokens.row_of_token]
    lengths = row_sums(ones, tokens.mask, tokens.row_of_token, tokens.weight.numel()).clamp(min=1)
    return (tokens.weight / lengths)[tokens.row_of_token] / tokens.row_count


def seq_mean_token_sum_norm(tokens: Tokens) -> Tensor:
    """Mean over rows of the sum over tokens, divided by a constant length (Dr.GRPO, Liu et al. 2025): no length bias.

    Example: losses (1, 2), (6), scale 3: (3 / 3 + 6 / 3) / 2 = 1.5.
    """
    return seq_mean_token_sum(tokens) / tokens.scale


AGGREGATIONS: dict[str, Callable[[Tokens], Tensor]] = {
    "token-mean": token_mean,
    "token-sum": token_sum,
    "seq-mean-token-sum": seq_mean_token_sum,
    "seq-mean-token-mean": seq_mean_token_mean,
    "seq-mean-token-sum-norm": seq_mean_token_sum_norm,
}


def weighted_sum(values: Tensor, token_weight: Tensor, active: Tensor) -> Tensor:
    """Scalar sum of weighted values over active tokens. What lies elsewhere, even NaN, is not read."""
    return torch.where(active, values * torch.where(active, token_weight, 0.0), 0.0).sum()


def aggregate(losses: Tensor, tokens: Tokens, mode: str) -> Tensor:
    """Token losses (T,) to this micro-batch's part of the loss, by ``actor.loss_agg_mode``."""
    return weighted_sum(losses, AGGREGATIONS[mode](tokens), tokens.active)
