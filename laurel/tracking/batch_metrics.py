"""Statistics of one training batch. Rows of weight 0 only pad and are in none of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor

from laurel.tracking.metrics import PER_TOKEN_PHASES


class Columns(Protocol):
    """What is read of a batch (laurel.batch's TokenBatch): tensors per token (T,) and per row (N,)."""

    @property
    def row_of_token(self) -> Tensor: ...
    @property
    def lengths(self) -> Tensor: ...
    @property
    def tokens(self) -> Mapping[str, Tensor]: ...
    @property
    def rows(self) -> Mapping[str, Tensor]: ...


def batch_metrics(batch: Columns) -> dict[str, float]:
    """Scores, rewards, advantages, returns and lengths.

    Columns that the batch does not have (values without a critic) are left out.
    """
    tokens, rows = batch.tokens, batch.rows
    counted = rows["weight"] > 0
    sampled = tokens["response_mask"] & counted[batch.row_of_token]
    metrics = _spread("critic/score", rows["score"][counted])
    if "rewards" in tokens:
        per_row = torch.zeros(counted.numel(), dtype=torch.float64)
        per_row.index_add_(0, batch.row_of_token, torch.where(sampled, tokens["rewards"], 0.0).double())
        metrics |= _spread("critic/rewards", per_row[counted])
    for name in ("advantages", "returns"):
        if name in tokens:
            metrics |= _spread(f"critic/{name}", tokens[name][sampled])
    if "values" in tokens:
        metrics |= _spread("critic/values", tokens["values"][sampled])
        if "returns" in tokens:
            metrics["critic/vf_explained_var"] = explained_variance(
                tokens["values"][sampled], tokens["returns"][sampled]
            )
    prompt = prompt_lengths(batch)[counted]
    metrics |= _spread("prompt_length", prompt)
    metrics |= _spread("response_length", batch.lengths[counted] - prompt)
    metrics["response_length/clip_ratio"] = float(rows["truncated"][counted].double().mean())
    return metrics


def speed_metrics(
    batch: Columns, timing: Mapping[str, float], *, ranks: int, discarded: float = 0.0
) -> dict[str, float]:
    """Tokens and time, from what a Timer gathered in the step (``timing_s/...``). Padding counts nowhere.

    ``ranks`` are learner ranks (GPUs, or processes on a CPU). ``discarded`` counts tokens that were sampled for the
    step, which took time, and are not in the batch.
    """
    counted = batch.rows["weight"] > 0
    total = int(batch.lengths[counted].sum())
    sampled = int((batch.tokens["response_mask"] & counted[batch.row_of_token]).sum()) + discarded
    metrics = {"perf/total_num_tokens": float(total)}
    for phase in PER_TOKEN_PHASES:
        seconds, count = timing.get(f"timing_s/{phase}"), sampled if phase == "gen" else total
        if seconds is not None and count:
            metrics[f"timing_per_token_ms/{phase}"] = 1000.0 * seconds / count
    if generating := timing.get("timing_s/gen"):
        metrics["rollout/tokens_per_second"] = sampled / generating
    if step := timing.get("timing_s/step"):
        metrics |= {"perf/time_per_step": step, "perf/throughput": total / step / ranks}
    return metrics


def explained_variance(values: Tensor, returns: Tensor) -> float:
    """``1 - var(returns - values) / var(returns)``: 1 is a perfect critic, 0 one that knows only the mean.

    Equal returns have no variance to explain: the result is 0. Example: returns 0, 2 and values 0, 1 give
    1 - 0.5 / 2 = 0.75.
    """
    if returns.numel() < 2:
        return 0.0
    values, returns = values.double(), returns.double()
    variance = returns.var()
    return float(1.0 - (returns - values).var() / variance) if variance > 0 else 0.0


def prompt_lengths(batch: Columns) -> Tensor:
    """(N,) int64: tokens before the first sampled one. A row without any is all prompt."""
    place = torch.arange(batch.row_of_token.numel()) - (batch.lengths.cumsum(0) - batch.lengths)[batch.row_of_token]
    first = torch.where(batch.tokens["response_mask"], place, batch.lengths[batch.row_of_token])
    return batch.lengths.clone().scatter_reduce(0, batch.row_of_token, first, reduce="amin")


def _spread(stem: str, values: Tensor) -> dict[str, float]:
    if values.numel() == 0:
        return {}
    values = values.double()
    return {
        f"{stem}/mean": float(values.mean()),
        f"{stem}/max": float(values.max()),
        f"{stem}/min": float(values.min()),
    }
