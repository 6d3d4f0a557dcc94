"""Triton kernels of layers.py. Imported on a GPU, and by tests under Triton's interpreter."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _add_rms_norm(
    residual, update, weight, out, width, eps, ADD: tl.constexpr, AROUND_ONE: tl.constexpr, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < width
    x = tl.load(residual + row * width + at, mask=inside, other=0.0)
    if ADD:
        x += tl.load(update + row * width + at, mask=inside, other=0.0).to(tl.float32)
        tl.store(residual + row * width + at, x, mask=inside)
    scale = tl.load(weight + at, mask=inside, other=0.0).to(tl.float32)
    if AROUND_ONE:
        scale += 1.0
    scaled = x * tl.rsqrt(tl.sum(x * x, 0) / width + eps) * scale
    tl.store(out + row * width + at, scaled.to(out.dtype.element_ty), mask=inside)


def add_rms_norm(residual: Tensor, update: Tensor | None, weight: Tensor, eps: float, around_one: bool) -> Tensor:
    rows, width = residual.shape
    out = torch.empty_like(residual, dtype=weight.dtype)
    block = triton.next_power_of_2(width)
    _add_rms_norm[(rows,)](
        residual,
        residual if update is None else update,
        weight,
        out,
        width,
        eps,
        ADD=update is not None,
        AROUND_ONE=around_one,
        BLOCK=block,
        num_warps=max(1, min(8, block // 512)),
    )
    return out


@triton.jit
def _rope_into_cache(
    qkv,
    positions,
    places,
    keys,
    values,
    cos,
    sin,
    q_norm,
    k_norm,
    eps,
    heads,
    kv_heads,
    PAGE: tl.constexpr,
    DIM: tl.constexpr,
    NORM: tl.constexpr,
    HEADS: tl.constexpr,
    HALF: tl.constexpr,
):
    """One token: all heads as (HEADS, HALF) tiles of first and second halves, both padded to powers of two."""
    token = tl.program_id(0).to(tl.int64)
    half = DIM // 2
    head = tl.arange(0, HEADS)[:, None]
    at = tl.arange(0, HALF)[None, :]
    total = heads + 2 * kv_heads
    inside = (head < total) & (at < half)
    first_at = qkv + token * total * DIM + head * DIM + at
    first = tl.load(first_at, mask=inside, other=0.0)
    second = tl.load(first_at + half, mask=inside, other=0.0)
    kind = first.dtype
    a, b = first.to(tl.float32), second.to(tl.float32)
    rotated = head < heads + kv_heads
    if NORM:
        scale = tl.rsqrt((tl.sum(a * a, 1) + tl.sum(b * b, 1)) / DIM + eps)[:, None]
        is_query = head < heads
        w_first = tl.where(
            is_query,
            tl.load(q_norm + at, mask=at < half, other=0.0).to(tl.float32),
            tl.load(k_norm + at, mask=at < half, other=0.0).to(tl.float32),
        )
        w_second = tl.where(
            is_query,
            tl.load(q_norm + half + at, mask=at < half, other=0.0).to(tl.float32),
            tl.load(k_norm + half + at, mask=at < half, other=0.0).to(tl.float32),
        )
        a = tl.where(rotated, (a * scale * w_first).to(kind).to(tl.float32), a)
        b = tl.where(rotated, (b * scale * w_second).to(kind).to(tl.float32), b)
    position = tl.load(positions + token)
    c = tl.load(cos + position * half + at, mask=at < half, other=0.0).to(tl.float32)
    s = tl.load(sin + position * half + at, mask=at < half, other=0.0).to(tl.float32)
    new_first = tl.where(rotated, a * c - b * s, a).to(kind)
    new_second = tl.where(rotated, b * c + a * s, b).to(kind)
    tl.store(first_at, new_first, mask=inside & rotated)
    tl.store(first_at + half, new_second, mask=inside & rotated)
    place = tl.load(places + token)
    page, within = place // PAGE, place % PAGE
    is_key = (head >= heads) & rotated
    key_at = keys + ((page * kv_heads + head - heads) * PAGE + within) * DIM + at
    tl.store(key_at, new_first, mask=inside & is_key)
    tl.store(key_at + half, new_second, mask=inside & is_key)
    value_at = values + ((page * kv_heads + head - heads - kv_heads) * PAGE + within) * DIM + at
    tl.store(value_at, first, mask=inside & (head >= heads + kv_heads))
    tl.store(value_at + half, second, mask=inside & (head >= heads + kv_heads))


def rope_into_cache(
    qkv: Tensor,
    positions: Tensor,
    places: Tensor,
    keys: Tensor,
    values: Tensor,
    heads: int,
    rope: tuple[Tensor, Tensor],
    norms: tuple[Tensor, Tensor, float] | None,
) -> None:
    """``rope``: cosines and sines; ``norms``: weights of the query's and the key's, and eps."""
    kv_heads, page, dim = keys.shape[1:]
    _rope_into_cache[(qkv.shape[0],)](
        qkv,
        positions,
        places,
        keys,
        values,
        *rope,
        *((qkv, qkv, 0.0) if norms is None else norms),
        heads,
        kv_heads,
        PAGE=page,
        DIM=dim,
        NORM=norms is not None,
        HEADS=triton.next_power_of_2(heads + 2 * kv_heads),
        HALF=triton.next_power_of_2(dim // 2),
        num_warps=4,
    )


@triton.jit
def _gated(gate_up, out, width, KIND: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < width
    gate = tl.load(gate_up + row * 2 * width + at, mask=inside, other=0.0)
    up = tl.load(gate_up + row * 2 * width + width + at, mask=inside, other=0.0)
    x = gate.to(tl.float32)
    if KIND == "silu":
        x = x * tl.sigmoid(x)
    elif KIND == "gelu":
        x = 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))
    else:
        inner = 0.7978845608028654 * (x + 0.044715 * x * x * x)
        x = x * tl.sigmoid(2.0 * inner)  # (1 + tanh y) / 2 = sigmoid(2 y)
    tl.store(out + row * width + at, (x.to(gate.dtype).to(tl.float32) * up.to(tl.float32)).to(gate.dtype), mask=inside)


def gated(gate_up: Tensor, activation: str) -> Tensor:
    rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    out = gate_up.new_empty(rows, width)
    block: Any = min(1024, triton.next_power_of_2(width))
    _gated[(rows, triton.cdiv(width, block))](gate_up, out, width, KIND=activation, BLOCK=block, num_warps=4)
    return out
