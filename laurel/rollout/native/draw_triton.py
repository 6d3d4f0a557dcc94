"""Triton kernels of draw.py and state.py: one pass over the logits, then one program per row.

The first kernel reads every logit once and keeps, per row and block of the vocabulary, the maximum, where it is, and
the sum of exponentials. The second finds the block that the random number falls into and reads that block alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from laurel.models.paged import PAGE as PAGE_TOKENS

if TYPE_CHECKING:
    from laurel.rollout.native.state import SlotState

_BLOCK = 4096


@triton.jit
def _blocks(
    logits, source, slots, temperatures, maxima, places, sums, vocab, parts, SHARED: tl.constexpr, BLOCK: tl.constexpr
):
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    temperature = tl.load(temperatures + tl.load(slots + row))
    scale = 1.0 / tl.where(temperature == 0.0, 1.0, temperature)
    line = row
    if SHARED:
        line = tl.load(source + row)
    at = part * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(logits + line * vocab + at, mask=at < vocab, other=float("-inf")).to(tl.float32) * scale
    best = tl.max(x, 0)
    tl.store(maxima + row * parts + part, best)
    tl.store(places + row * parts + part, part * BLOCK + tl.argmax(tl.where(x == x, x, float("-inf")), 0))
    # A block of nothing but minus infinity adds nothing
    tl.store(sums + row * parts + part, tl.sum(tl.exp(x - tl.where(best == float("-inf"), 0.0, best)), 0))


@triton.jit
def _uniform(seed, counter):
    """SplitMix64, as laurel/rollout/seeds.py has it: float64 in [0, 1)."""
    state = seed.to(tl.uint64, bitcast=True) + (counter + 1).to(tl.uint64) * 0x9E3779B97F4A7C15
    state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9
    state = (state ^ (state >> 27)) * 0x94D049BB133111EB
    state = (state ^ (state >> 31)) >> 11
    return state.to(tl.float64) * 1.1102230246251565e-16


@triton.jit
def _choose(
    logits,
    source,
    slots,
    temperatures,
    maxima,
    places,
    sums,
    seeds,
    counts,
    limits,
    statuses,
    tokens,
    positions,
    stops,
    out_tokens,
    out_log_probs,
    out_stride,
    vocab,
    parts,
    SHARED: tl.constexpr,
    BLOCK: tl.constexpr,
    PARTS: tl.constexpr,
    STOPS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + row).to(tl.int64)
    if tl.load(statuses + slot) == 0:
        temperature = tl.load(temperatures + slot)
        scale = 1.0 / tl.where(temperature == 0.0, 1.0, temperature)
        line = row
        if SHARED:
            line = tl.load(source + row)
        part = tl.arange(0, PARTS)
        known = part < parts
        peak = tl.load(maxima + row * parts + part, mask=known, other=float("-inf"))
        highest = tl.max(peak, 0)
        mass = tl.load(sums + row * parts + part, mask=known, other=0.0).to(tl.float64)
        mass = mass * tl.exp((peak - highest).to(tl.float64))
        running = tl.cumsum(mass, 0)
        total = tl.sum(mass, 0)
        count = tl.load(counts + slot)
        target = _uniform(tl.load(seeds + slot), count) * total
        # The block that the target falls into, and what is left of it within the block
        hit = tl.minimum(tl.sum((running <= target).to(tl.int32), 0), parts - 1)
        before = tl.sum(tl.where(part < hit, mass, 0.0), 0)
        likeliest = tl.load(places + row * parts + tl.argmax(tl.where(peak == peak, peak, float("-inf")), 0))
        at = hit * BLOCK + tl.arange(0, BLOCK)
        x = tl.load(logits + line * vocab + at, mask=at < vocab, other=float("-inf")).to(tl.float32) * scale
        within = tl.cumsum(tl.exp((x - highest).to(tl.float64)), 0)
        index = tl.sum((within <= target - before).to(tl.int32), 0)
        # Rounding may leave the target beyond the block's end: its likeliest token then
        beyond = (index >= BLOCK) | (hit * BLOCK + index >= vocab)
        sampled = tl.where(beyond, tl.load(places + row * parts + hit), hit * BLOCK + index)
        token = tl.where(temperature == 0.0, likeliest, sampled).to(tl.int64)
        chosen = tl.load(logits + line * vocab + token).to(tl.float32) * scale
        log_prob = (chosen - highest) - tl.log(total).to(tl.float32)
        finite = (log_prob == log_prob) & (tl.abs(log_prob) < float("inf"))
        if finite:
            tl.store(out_tokens + slot * out_stride + count, token.to(tl.int32))
            tl.store(out_log_probs + slot * out_stride + count, log_prob)
            tl.store(tokens + slot, token)
            tl.store(positions + slot, tl.load(positions + slot) + 1)
            tl.store(counts + slot, count + 1)
            own = tl.load(stops + slot * STOPS + tl.arange(0, STOPS))
            stopped = tl.sum((own == token).to(tl.int32), 0) > 0
            full = count + 1 >= tl.load(limits + slot)
            tl.store(statuses + slot, tl.where(stopped, 1, tl.where(full, 2, 0)).to(tl.int8))
        else:
            tl.store(statuses + slot, 3)


def draw(logits: Tensor, slots: Tensor, state: SlotState, source: Tensor | None) -> None:
    rows, vocab = slots.numel(), logits.shape[1]
    parts = triton.cdiv(vocab, _BLOCK)
    maxima = logits.new_empty(rows, parts, dtype=torch.float32)
    sums, places = torch.empty_like(maxima), torch.empty_like(maxima, dtype=torch.int32)
    shared: Any = slots if source is None else source
    _blocks[(rows, parts)](
        logits, shared, slots, state.temperature, maxima, places, sums, vocab, parts,
        SHARED=source is not None, BLOCK=_BLOCK, num_warps=4,
    )  # fmt: skip
    _choose[(rows,)](
        logits, shared, slots, state.temperature, maxima, places, sums, state.seed, state.count, state.limit,
        state.status, state.token, state.position, state.stops, state.out_tokens, state.out_log_probs,
        state.out_tokens.stride(0), vocab, parts,
        SHARED=source is not None, BLOCK=_BLOCK, PARTS=triton.next_power_of_2(parts), STOPS=state.stops.shape[1],
        num_warps=4,
    )  # fmt: skip


@triton.jit
def _inputs(slots, tokens, positions, table, table_stride, out, lengths, rows, PAGE: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = row < rows
    slot = tl.load(slots + row, mask=inside, other=0).to(tl.int64)
    position = tl.load(positions + slot, mask=inside, other=0)
    page = tl.load(table + slot * table_stride + position // PAGE, mask=inside, other=0).to(tl.int64)
    tl.store(out + row, tl.load(tokens + slot, mask=inside, other=0), mask=inside)
    tl.store(out + rows + row, position, mask=inside)
    tl.store(out + 2 * rows + row, page * PAGE + position % PAGE, mask=inside)
    tl.store(lengths + row, (position + 1).to(tl.int32), mask=inside)


def inputs(state: SlotState, slots: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    rows = slots.numel()
    out = torch.empty(3, rows, dtype=torch.int64, device=slots.device)
    lengths = torch.empty(rows, dtype=torch.int32, device=slots.device)
    _inputs[(triton.cdiv(rows, 128),)](
        slots, state.token, state.position, state.table, state.table.stride(0), out, lengths, rows,
        PAGE=PAGE_TOKENS, BLOCK=128, num_warps=4,
    )  # fmt: skip
    return out[0], out[1], out[2], lengths
