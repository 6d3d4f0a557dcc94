"""Triton kernel of paged_attention.py. Imported on a GPU, and by tests under Triton's interpreter."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _attend(
    query,
    query_stride,
    keys,
    values,
    slots,
    lengths,
    table,
    table_stride,
    out,
    part_max,
    part_sum,
    scale,
    kv_heads,
    GROUP: tl.constexpr,
    DIM: tl.constexpr,
    PAGE: tl.constexpr,
    SPLITS: tl.constexpr,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """One part of one row's pages for one KV head; the GROUP query heads that read it are the rows of a tile."""
    row, kv_head, part = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    member = tl.arange(0, ROWS)
    at = tl.arange(0, WIDTH)
    token = tl.arange(0, PAGE)
    head = kv_head * GROUP + member
    wanted = (member[:, None] < GROUP) & (at[None, :] < DIM)
    q = tl.load(query + row * query_stride + head[:, None] * DIM + at[None, :], mask=wanted, other=0.0)
    length = tl.load(lengths + row)
    own = table + tl.load(slots + row).to(tl.int64) * table_stride
    pages = tl.cdiv(length, PAGE)
    each = tl.cdiv(pages, SPLITS)
    first = part * each
    last = tl.minimum(pages, first + each)
    best = tl.full((ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    acc = tl.zeros((ROWS, WIDTH), tl.float32)
    factor = scale * 1.4426950408889634  # exp2 is what the hardware has
    for i in range(first, last):
        page = tl.load(own + i).to(tl.int64)
        base = (page * kv_heads + kv_head) * PAGE * DIM
        where = base + token[:, None] * DIM + at[None, :]
        present = i * PAGE + token < length
        if WIDTH == DIM:
            k = tl.load(keys + where)
            v = tl.load(values + where, mask=present[:, None], other=0.0)
        else:
            k = tl.load(keys + where, mask=at[None, :] < DIM, other=0.0)
            v = tl.load(values + where, mask=present[:, None] & (at[None, :] < DIM), other=0.0)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * factor
        scores = tl.where(present[None, :], scores, float("-inf"))
        higher = tl.maximum(best, tl.max(scores, 1))
        weights = tl.exp2(scores - higher[:, None])
        fade = tl.exp2(best - higher)
        total = total * fade + tl.sum(weights, 1)
        acc = acc * fade[:, None] + tl.dot(weights.to(v.dtype), v, input_precision="ieee")
        best = higher
    if SPLITS == 1:
        where_out = row * kv_heads * GROUP * DIM + head[:, None] * DIM + at[None, :]
        tl.store(out + where_out, (acc / total[:, None]).to(out.dtype.element_ty), mask=wanted)
    else:
        slot = (row * kv_heads * GROUP + head) * SPLITS + part
        tl.store(part_max + slot, best, mask=member < GROUP)
        tl.store(part_sum + slot, total, mask=member < GROUP)
        tl.store(out + slot[:, None] * DIM + at[None, :], acc, mask=wanted)


@triton.jit
def _join(parts, part_max, part_sum, out, DIM: tl.constexpr, SPLITS: tl.constexpr, WIDTH: tl.constexpr):
    """One query head of one row: its parts, each with its own maximum, to one result."""
    head = tl.program_id(0).to(tl.int64)
    part = tl.arange(0, SPLITS)
    at = tl.arange(0, WIDTH)
    maxima = tl.load(part_max + head * SPLITS + part)
    weights = tl.exp2(maxima - tl.max(maxima, 0))
    total = tl.sum(weights * tl.load(part_sum + head * SPLITS + part), 0)
    where = (head * SPLITS + part[:, None]) * DIM + at[None, :]
    tile = tl.load(parts + where, mask=at[None, :] < DIM, other=0.0)
    joined = tl.sum(tile * weights[:, None], 0) / total
    tl.store(out + head * DIM + at, joined.to(out.dtype.element_ty), mask=at < DIM)


def paged_attention(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    slots: Tensor,
    lengths: Tensor,
    table: Tensor,
    scale: float,
    splits: int,
) -> Tensor:
    rows, heads, dim = query.shape
    kv_heads, page = keys.shape[1:3]
    group, width = heads // kv_heads, triton.next_power_of_2(dim)
    out = query.new_empty(rows, heads * dim)
    if splits == 1:
        parts, part_max, part_sum = out, out, out
    else:
        parts = query.new_empty(rows * heads * splits, dim, dtype=torch.float32)
        part_max = query.new_empty(rows * heads * splits, dtype=torch.float32)
        part_sum = torch.empty_like(part_max)
    _attend[(rows, kv_heads, splits)](
        query,
        query.stride(0),
        keys,
        values,
        slots,
        lengths,
        table,
        table.stride(0),
        parts,
        part_max,
        part_sum,
        scale,
        kv_heads,
        GROUP=group,
        DIM=dim,
        PAGE=page,
        SPLITS=splits,
        ROWS=max(16, triton.next_power_of_2(group)),
        WIDTH=max(16, width),
        num_warps=2,
        num_stages=3,
    )
    if splits > 1:
        _join[(rows * heads,)](parts, part_max, part_sum, out, DIM=dim, SPLITS=splits, WIDTH=width, num_warps=1)
    return out
