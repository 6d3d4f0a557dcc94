"""Advantage estimators over packed rows. Sums run in float64; results are float32.

Every function takes keyword tensors: per token (T,), per row (N,). It returns ``advantages`` and ``returns`` (T,),
which are 0 at tokens that the policy did not sample and in rows of weight 0.
"""

from __future__ import annotations

import torch
from torch import Tensor

from laurel.algos.masked import active_tokens, masked_whiten, row_sums


def discounted_suffix_sums(values: Tensor, remaining: Tensor, factor: float) -> Tensor:
    """(T,): ``s_t = x_t + factor * s_(t+1)`` within each row.

    ``remaining`` (T,) int64 counts the tokens that follow t in its row, so it falls to 0 at the row's end. The scan
    doubles its reach in each pass (Hillis and Steele 1986), so 1000 tokens take 10 passes over packed memory, whatever
    the row lengths are.

    Example: one row 1, 2, 3 and factor 0.5 give 2.75, 3.5, 3.
    """
    sums = values.clone()
    if values.numel() == 0:
        return sums
    reach = 1
    while reach <= int(remaining.max()):
        inside = remaining[:-reach] >= reach
        sums[:-reach] += torch.where(inside, sums[reach:] * factor**reach, 0.0)
        reach *= 2
    return sums


def gae(
    *,
    rewards: Tensor,
    values: Tensor,
    mask: Tensor,
    row_of_token: Tensor,
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
    active = active_tokens(mask, row_of_token, weight)
    where = active.nonzero().squeeze(1)
    row, value, reward = row_of_token[where], values[where].double(), rewards[where].double()
    _refuse_nan("rewards", reward, row)
    _refuse_nan("values", value, row)

    tokens_of_row = torch.bincount(row, minlength=weight.numel())
    remaining = tokens_of_row.cumsum(0)[row] - 1 - torch.arange(row.numel(), device=row.device)
    next_value = torch.where(remaining > 0, torch.cat([value[1:], value[:1]]), 0.0)
    raw = discounted_suffix_sums(reward + gamma * next_value - value, remaining, gamma * lam)

    advantages, returns = torch.zeros_like(rewards, dtype=torch.float64), torch.zeros_like(rewards, dtype=torch.float64)
    advantages[where] = raw
    returns[where] = raw + value
    return {"advantages": masked_whiten(advantages, active).float(), "returns": returns.float()}


def grpo(
    *,
    rewards: Tensor,
    mask: Tensor,
    row_of_token: Tensor,
    group: Tensor,
    weight: Tensor,
    norm_by_std: bool,
    eps: float = 1e-6,
) -> dict[str, Tensor]:
    """Group-relative advantages. Shao et al. 2024 (DeepSeekMath, arXiv:2402.03300), section 4.1.2.

    With R the sum of a row's token rewards, every sampled token of the row gets::

        A = (R - mean(R of its group)) / (std(R of its group) + eps)

    ``std`` has Bessel's correction. ``norm_by_std=False`` leaves the division out (Dr.GRPO, Liu et al. 2025). A group
    whose rows are all equal gets 0. A group of one has nothing to be compared with: it keeps its R (mean 0, std 1), as
    users of verl know it. Rows of weight 0 belong to no group. A NaN reward is an error. ``returns`` equal the
    advantages.

    Example: one group with R 0, 1, 2: mean 1, std 1, so the advantages are -1, 0, 1.
    """
    active = active_tokens(mask, row_of_token, weight)
    counted = weight > 0
    total = row_sums(rewards.double(), active, row_of_token, weight.numel())
    _refuse_nan("rewards", total, torch.arange(weight.numel(), device=weight.device))

    _, member = group.unique(return_inverse=True)
    groups = int(member.max()) + 1
    size = row_sums(counted.double(), counted, member, groups)
    mean = row_sums(total, counted, member, groups) / size.clamp(min=1)
    squares = row_sums((total - mean[member]).square(), counted, member, groups)
    std = (squares / (size - 1).clamp(min=1)).sqrt()
    alone = size == 1
    mean, std = torch.where(alone, 0.0, mean), torch.where(alone, 1.0, std)

    advantage = total - mean[member]
    if norm_by_std:
        advantage = torch.where(alone[member], advantage, advantage / (std[member] + eps))
    advantages = torch.where(active, advantage[row_of_token], 0.0).float()
    return {"advantages": advantages, "returns": advantages}


def _refuse_nan(name: str, values: Tensor, row: Tensor) -> None:
    broken = ~values.isfinite()
    if bool(broken.any()):
        rows = row[broken].unique().tolist()
        raise ValueError(f"{name} of rows {rows[:8]} are NaN or infinite; advantages need finite numbers")
