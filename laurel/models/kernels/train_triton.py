"""Triton kernels of a trained layer's steps between its matrix products (models/trained.py), forward and backward."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

_ROWS = 16  # of a program going back, which adds up its part of the weight's gradient over them


@triton.jit
def _add_norm(
    hidden, update, weight, summed, out, scales, width, eps,
    ADD: tl.constexpr, AROUND_ONE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < width
    x = tl.load(hidden + row * width + at, mask=inside, other=0.0).to(tl.float32)
    if ADD:
        x += tl.load(update + row * width + at, mask=inside, other=0.0).to(tl.float32)
        tl.store(summed + row * width + at, x, mask=inside)
    scale = tl.rsqrt(tl.sum(x * x, 0) / width + eps)
    factor = tl.load(weight + at, mask=inside, other=0.0).to(tl.float32)
    if AROUND_ONE:
        factor += 1.0
    tl.store(scales + row, scale)
    tl.store(out + row * width + at, (x * scale * factor).to(out.dtype.element_ty), mask=inside)


@triton.jit
def _add_norm_back(
    summed, scales, weight, d_summed, d_out, d_hidden, d_update, d_weight, rows, width,
    ADD: tl.constexpr, AROUND_ONE: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """With n = x s the normalized row: dx = d_summed + s (g - n mean(g n)), g = d_out * weight; and of the weight
    the sum of d_out * n over rows."""
    part = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < width
    factor = tl.load(weight + at, mask=inside, other=0.0).to(tl.float32)
    if AROUND_ONE:
        factor += 1.0
    total = tl.zeros((BLOCK,), tl.float32)
    for row in range(part * ROWS, tl.minimum(part * ROWS + ROWS, rows)):
        scale = tl.load(scales + row)
        normal = tl.load(summed + row * width + at, mask=inside, other=0.0) * scale
        grad = tl.load(d_out + row * width + at, mask=inside, other=0.0).to(tl.float32)
        total += grad * normal
        grad *= factor
        through = (grad - normal * (tl.sum(grad * normal, 0) / width)) * scale
        through += tl.load(d_summed + row * width + at, mask=inside, other=0.0)
        tl.store(d_hidden + row * width + at, through, mask=inside)
        if ADD:
            tl.store(d_update + row * width + at, through.to(d_update.dtype.element_ty), mask=inside)
    tl.store(d_weight + part * width + at, total, mask=inside)


def add_norm(
    hidden: Tensor, update: Tensor | None, weight: Tensor, eps: float, around_one: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """hidden (n, H) float32, update (n, H): their sum (hidden itself without an update), the norm of it in the weight's
    dtype, and what each row was multiplied by (n,)."""
    rows, width = hidden.shape
    summed = hidden if update is None else torch.empty_like(hidden)
    out = torch.empty_like(hidden, dtype=weight.dtype)
    scales = hidden.new_empty(rows)
    block = triton.next_power_of_2(width)
    _add_norm[(rows,)](
        hidden, hidden if update is None else update, weight, summed, out, scales, width, eps,
        ADD=update is not None, AROUND_ONE=around_one, BLOCK=block, num_warps=_warps(block),
    )  # fmt: skip
    return summed, out, scales


def add_norm_back(
    summed: Tensor,
    scales: Tensor,
    weight: Tensor,
    d_summed: Tensor,
    d_out: Tensor,
    *,
    around_one: bool,
    update: torch.dtype | None,
) -> tuple[Tensor, Tensor | None, Tensor]:
    """Gradients of hidden (n, H) float32, of the update in its dtype if there is one, and of the weight (H,)."""
    rows, width = summed.shape
    d_hidden = torch.empty_like(summed)
    d_update = None if update is None else torch.empty_like(summed, dtype=update)
    parts = triton.cdiv(rows, _ROWS)
    d_weight = summed.new_empty(parts, width)
    block = triton.next_power_of_2(width)
    _add_norm_back[(parts,)](
        summed, scales, weight, d_summed.contiguous(), d_out.contiguous(), d_hidden,
        d_hidden if d_update is None else d_update, d_weight, rows, width,
        ADD=d_update is not None, AROUND_ONE=around_one, ROWS=_ROWS, BLOCK=block, num_warps=_warps(block),
    )  # fmt: skip
    return d_hidden, d_update, d_weight.sum(0).to(weight.dtype)


def _warps(block: int) -> int:
    return max(1, min(8, block // 256))


@triton.jit
def _gated_back(gate_up, grad, out, width, KIND: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < width
    gate = tl.load(gate_up + row * 2 * width + at, mask=inside, other=0.0)
    x = gate.to(tl.float32)
    up = tl.load(gate_up + row * 2 * width + width + at, mask=inside, other=0.0).to(tl.float32)
    g = tl.load(grad + row * width + at, mask=inside, other=0.0).to(tl.float32)
    if KIND == "silu":
        s = tl.sigmoid(x)
        value = x * s
        slope = s * (1.0 + x * (1.0 - s))
    elif KIND == "gelu":
        half = 0.5 * (1.0 + tl.erf(x * 0.7071067811865476))
        value = x * half
        slope = half + x * 0.3989422804014327 * tl.exp(-0.5 * x * x)
    else:
        s = tl.sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))
        value = x * s
        slope = s + x * s * (1.0 - s) * 1.5957691216057308 * (1.0 + 0.134145 * x * x)
    tl.store(out + row * 2 * width + at, (g * up * slope).to(gate.dtype), mask=inside)
    tl.store(out + row * 2 * width + width + at, (g * value).to(gate.dtype), mask=inside)


def gated_back(gate_up: Tensor, grad: Tensor, activation: str) -> Tensor:
    """The gradient of gate_up (n, 2 I) from that of ``activation(gate) * up`` (n, I)."""
    rows, width = grad.shape
    out = torch.empty_like(gate_up)
    block: Any = min(1024, triton.next_power_of_2(width))
    _gated_back[(rows, triton.cdiv(width, block))](
        gate_up, grad.contiguous(), out, width, KIND=activation, BLOCK=block, num_warps=4
    )
    return out
