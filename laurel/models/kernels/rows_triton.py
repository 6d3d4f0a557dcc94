"""Triton kernels of training's attention (models/rows.py): rotary embedding and the prompts that several rows share."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _turn(
    qkv, sources, cos, sin, out, heads, first, width,
    DIM: tl.constexpr, TURNED: tl.constexpr, SHARED: tl.constexpr, HEADS: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    """Heads ``first`` to ``first`` + heads of one token of qkv, the first TURNED of them turned, to ``out``."""
    token = tl.program_id(0).to(tl.int64)
    source = token
    if SHARED:
        source = tl.load(sources + token)
    half = DIM // 2
    head = tl.arange(0, HEADS)[:, None]
    at = tl.arange(0, HALF)[None, :]
    inside = (head < heads) & (at < half)
    where = qkv + source * width + (first + head) * DIM + at
    a = tl.load(where, mask=inside, other=0.0)
    b = tl.load(where + half, mask=inside, other=0.0)
    c = tl.load(cos + source * DIM + at, mask=at < half, other=0.0).to(tl.float32)
    s = tl.load(sin + source * DIM + at, mask=at < half, other=0.0).to(tl.float32)
    x, y = a.to(tl.float32), b.to(tl.float32)
    turned = head < TURNED
    to = out + token * heads * DIM + head * DIM + at
    tl.store(to, tl.where(turned, x * c - y * s, x).to(a.dtype), mask=inside)
    tl.store(to + half, tl.where(turned, y * c + x * s, y).to(a.dtype), mask=inside)


def turned(
    qkv: Tensor, cos: Tensor, sin: Tensor, source: Tensor | None, tokens: int, sizes: tuple[int, int, int]
) -> tuple[Tensor, Tensor, Tensor]:
    """qkv (C, (Hq + 2 Hkv) * D), cos and sin (C, D) to query (C, Hq, D), key and value (T, Hkv, D): the last two are
    those of the computed tokens ``source`` (T,), or of all C where that is None. ``sizes`` is (Hq, Hkv, D)."""
    heads, kv_heads, dim = sizes
    computed, width = qkv.shape
    query = qkv.new_empty(computed, heads, dim)
    both = qkv.new_empty(tokens, 2 * kv_heads, dim)
    half = triton.next_power_of_2(dim // 2)
    _turn[(computed,)](
        qkv, qkv, cos, sin, query, heads, 0, width,
        DIM=dim, TURNED=heads, SHARED=False, HEADS=triton.next_power_of_2(heads), HALF=half, num_warps=4,
    )  # fmt: skip
    _turn[(tokens,)](
        qkv, qkv if source is None else source, cos, sin, both, 2 * kv_heads, heads, width,
        DIM=dim, TURNED=kv_heads, SHARED=source is not None, HEADS=triton.next_power_of_2(2 * kv_heads), HALF=half,
        num_warps=1,
    )  # fmt: skip
    return query, both[:, :kv_heads], both[:, kv_heads:]


@triton.jit
def _turn_back(
    d_query, d_key, d_value, offsets, members, cos, sin, out, heads, kv_heads, kv_stride,
    DIM: tl.constexpr, SHARED: tl.constexpr, HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    """One computed token: gradients of its query, and of the keys and values of all tokens that it stands for."""
    token = tl.program_id(0).to(tl.int64)
    half = DIM // 2
    at = tl.arange(0, HALF)[None, :]
    line = at < half
    c = tl.load(cos + token * DIM + at, mask=line, other=0.0).to(tl.float32)
    s = tl.load(sin + token * DIM + at, mask=line, other=0.0).to(tl.float32)
    base = out + token * (heads + 2 * kv_heads) * DIM
    head = tl.arange(0, HEADS)[:, None]
    inside = (head < heads) & line
    a = tl.load(d_query + token * heads * DIM + head * DIM + at, mask=inside, other=0.0)
    b = tl.load(d_query + token * heads * DIM + head * DIM + at + half, mask=inside, other=0.0)
    x, y = a.to(tl.float32), b.to(tl.float32)
    tl.store(base + head * DIM + at, (x * c + y * s).to(a.dtype), mask=inside)
    tl.store(base + head * DIM + at + half, (y * c - x * s).to(a.dtype), mask=inside)
    head = tl.arange(0, KV_HEADS)[:, None]
    inside = (head < kv_heads) & line
    key_a = tl.zeros((KV_HEADS, HALF), tl.float32)
    key_b = tl.zeros((KV_HEADS, HALF), tl.float32)
    value_a = tl.zeros((KV_HEADS, HALF), tl.float32)
    value_b = tl.zeros((KV_HEADS, HALF), tl.float32)
    first, last = token, token + 1
    if SHARED:
        first, last = tl.load(offsets + token), tl.load(offsets + token + 1)
    for i in range(first, last):
        member = i
        if SHARED:
            member = tl.load(members + i)
        where = member * kv_stride + head * DIM + at
        key_a += tl.load(d_key + where, mask=inside, other=0.0).to(tl.float32)
        key_b += tl.load(d_key + where + half, mask=inside, other=0.0).to(tl.float32)
        value_a += tl.load(d_value + where, mask=inside, other=0.0).to(tl.float32)
        value_b += tl.load(d_value + where + half, mask=inside, other=0.0).to(tl.float32)
    key = base + (heads + head) * DIM + at
    tl.store(key, (key_a * c + key_b * s).to(a.dtype), mask=inside)
    tl.store(key + half, (key_b * c - key_a * s).to(a.dtype), mask=inside)
    value = base + (heads + kv_heads + head) * DIM + at
    tl.store(value, value_a.to(a.dtype), mask=inside)
    tl.store(value + half, value_b.to(a.dtype), mask=inside)


def turned_back(
    d_query: Tensor,
    d_key: Tensor,
    d_value: Tensor,
    cos: Tensor,
    sin: Tensor,
    members: tuple[Tensor, Tensor] | None,
) -> Tensor:
    """Gradients of query (C, Hq, D), key and value (T, Hkv, D) to that of qkv (C, (Hq + 2 Hkv) * D).

    ``members``: offsets (C + 1,) into the tokens (T,) that each computed token stands for.
    """
    computed, heads, dim = d_query.shape
    kv_heads = d_key.shape[1]
    d_query, d_key, d_value = d_query.contiguous(), d_key.contiguous(), d_value.contiguous()
    out = d_query.new_empty(computed, (heads + 2 * kv_heads) * dim)
    offsets, tokens = (d_query, d_query) if members is None else members
    _turn_back[(computed,)](
        d_query, d_key, d_value, offsets, tokens, cos, sin, out, heads, kv_heads, kv_heads * dim,
        DIM=dim, SHARED=members is not None, HEADS=triton.next_power_of_2(heads),
        KV_HEADS=triton.next_power_of_2(kv_heads), HALF=triton.next_power_of_2(dim // 2), num_warps=4,
    )  # fmt: skip
    return out
