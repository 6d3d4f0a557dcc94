"""How a batch is cut: mini-batches of whole groups, shares for ranks, micro-batches under a token budget.

Everything here is a pure function of lengths, so the controller decides once and every rank does as many forwards as
every other (a collective needs that).
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from laurel.batch.token_batch import TokenBatch


@dataclass(frozen=True)
class MiniBatch:
    """One rank's share of one optimizer update.

    ``micro_batches`` has the same length on every rank; ranks with less work get rows of weight 0. ``token_count`` and
    ``row_count`` are those of the whole mini-batch over all ranks: losses are sums divided by them, so any number of
    ranks and micro-batches gives the same gradient.
    """

    micro_batches: tuple[TokenBatch, ...]
    token_count: float
    row_count: float


def balance(costs: Sequence[int], ranks: int) -> list[list[int]]:
    """Items to ranks, longest first to the least loaded rank. Deterministic; ties go to the lower rank.

    Example: ``balance([4, 1, 3, 2], 2) == [[0, 1], [2, 3]]``.
    """
    load = [(0, rank) for rank in range(ranks)]
    shares: list[list[int]] = [[] for _ in range(ranks)]
    for item in sorted(range(len(costs)), key=lambda i: (-costs[i], i)):
        total, rank = heapq.heappop(load)
        shares[rank].append(item)
        heapq.heappush(load, (total + costs[item], rank))
    return [sorted(share) for share in shares]


def pack(lengths: Sequence[int], max_tokens: int | None, max_rows: int | None = None) -> list[list[int]]:
    """Rows to micro-batches of at most ``max_tokens`` tokens and ``max_rows`` rows, first fit by falling length.

    A row longer than the budget gets a micro-batch of its own: the budget bounds memory, it does not drop data.
    """
    bins: list[list[int]] = []
    room: list[int] = []
    for row in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        for number, left in enumerate(room):
            fits = max_tokens is None or lengths[row] <= left
            if fits and (max_rows is None or len(bins[number]) < max_rows):
                bins[number].append(row)
                room[number] -= lengths[row]
                break
        else:
            bins.append([row])
            room.append((max_tokens or 0) - lengths[row])
    return [sorted(rows) for rows in bins]


def split_for_ranks(
    batch: TokenBatch, ranks: int, max_tokens: int | None, max_rows: int | None = None
) -> list[tuple[TokenBatch, ...]]:
    """Micro-batches for each rank, the same number for all. Rows of weight 0 fill the ranks that have fewer.

    Trajectories of one prompt stay together where that leaves the ranks balanced, so that a forward computes the prompt
    that they share once.
    """
    lengths = batch.lengths.tolist()
    units = _units(batch, ranks, max_tokens, max_rows)
    costs = [sum(lengths[row] for row in unit) for unit in units]
    shares = balance(costs, ranks)
    packed = [_pack_units([units[i] for i in share], lengths, max_tokens, max_rows) for share in shares]
    most = max(len(bins) for bins in packed)
    shortest = min(range(len(lengths)), key=lambda i: (lengths[i], i))
    filler = batch.select([shortest]).with_weight(0.0)
    return [tuple(batch.select(rows) for rows in bins) + (filler,) * (most - len(bins)) for bins in packed]


# With fewer units per rank than this, whole groups would leave some ranks waiting for others.
_UNITS_PER_RANK = 4


def _units(batch: TokenBatch, ranks: int, max_tokens: int | None, max_rows: int | None) -> list[list[int]]:
    """What is shared out in one piece: the rows of a group, as far as they fit a micro-batch; else single rows."""
    single = [[row] for row in range(batch.row_count)]
    if not batch.has("group"):
        return single
    groups: dict[int, list[int]] = {}
    for row, group in enumerate(batch.group.tolist()):
        groups.setdefault(group, []).append(row)
    lengths = batch.lengths.tolist()
    units = [
        [rows[i] for i in part]
        for rows in groups.values()
        for part in pack([lengths[row] for row in rows], max_tokens, max_rows)
    ]
    return units if ranks == 1 or len(units) >= _UNITS_PER_RANK * ranks else single


def _pack_units(
    units: Sequence[Sequence[int]], lengths: Sequence[int], max_tokens: int | None, max_rows: int | None
) -> list[list[int]]:
    """Rows of whole units to micro-batches, within the same bounds as ``pack``."""
    if max_rows is not None and max_tokens is not None:
        raise ValueError("a micro-batch is bounded by tokens or by rows, not by both")
    size, most = (len, max_rows) if max_rows is not None else (lambda unit: sum(lengths[i] for i in unit), max_tokens)
    bins = pack([size(unit) for unit in units], most)
    return [sorted(row for i in chosen for row in units[i]) for chosen in bins]


def mini_batches(batch: TokenBatch, prompts_per_update: int, order: Sequence[int] | None = None) -> list[TokenBatch]:
    """Mini-batches of ``prompts_per_update`` whole groups; the last may be smaller. ``order`` permutes the groups."""
    groups = batch.group.unique(sorted=True).tolist()
    if order is not None:
        groups = [groups[i] for i in order]
    rows: dict[int, list[int]] = {}
    for row, group in enumerate(batch.group.tolist()):
        rows.setdefault(group, []).append(row)
    return [
        batch.select([row for group in groups[start : start + prompts_per_update] for row in rows[group]])
        for start in range(0, len(groups), prompts_per_update)
    ]


def rank_shares(mini: TokenBatch, ranks: int, max_tokens: int | None, max_rows: int | None = None) -> list[MiniBatch]:
    """One optimizer update, shared out over ranks."""
    per_token = mini.weight[mini.row_of_token]
    token_count = float((mini.response_mask * per_token).sum())
    row_count = float(mini.weight.sum())
    return [MiniBatch(micros, token_count, row_count) for micros in split_for_ranks(mini, ranks, max_tokens, max_rows)]


def gather_tokens(batch: TokenBatch, name: str, shards: Sequence[tuple[TokenBatch, torch.Tensor]]) -> torch.Tensor:
    """Per-token results of micro-batches back in the order of ``batch``: (T,).

    Each shard is the micro-batch that was computed and its result. Rows are matched by ``index``; rows of weight 0 that
    only filled a rank are passed over.
    """
    result = torch.full((batch.token_count,), float("nan"))
    place = {index: row for row, index in enumerate(batch.index.tolist())}
    for micro, values in shards:
        if not bool((micro.weight > 0).any()):
            continue
        rows = torch.tensor([place[index] for index in micro.index.tolist()])
        starts = torch.repeat_interleave(batch.cu_seqlens[:-1][rows] - micro.cu_seqlens[:-1], micro.lengths)
        result[starts + torch.arange(micro.token_count)] = values.to(result.dtype).cpu()
    if bool(result.isnan().any()):
        missing = batch.index[batch.row_of_token[result.isnan()]].unique().tolist()
        raise ValueError(f"{name} is missing or NaN for rows {missing[:8]} of {batch.row_count}")
    return result
