"""Attention within packed rows, from the product of queries, keys and values on: rotary embedding included.

On a GPU the queries of a prompt that several rows share are computed once, like everything else of it; only its keys
and values, which every row reads, are repeated.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from laurel.models.attention import Packing, attend_rows, flash, flash_gradients


def attend_qkv(
    qkv: Tensor, cos: Tensor, sin: Tensor, packing: Packing, *, sizes: tuple[int, int, int], scale: float
) -> Tensor:
    """qkv (C, (Hq + 2 Hkv) * D), not yet turned, cos and sin (C, D) to (C, Hq * D). ``sizes`` is (Hq, Hkv, D)."""
    if qkv.is_cuda and qkv.dtype in (torch.bfloat16, torch.float16):
        return _Attend.apply(qkv, cos, sin, packing, sizes, scale)
    heads, kv_heads, dim = sizes
    query, key, value = qkv.view(qkv.shape[0], -1, dim).split((heads, kv_heads, kv_heads), 1)
    return attend_rows(_turned(query, cos, sin), _turned(key, cos, sin), value, packing, scale).flatten(1)


def _turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return x * cos[:, None] + torch.cat((-second, first), -1) * sin[:, None]


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, qkv: Tensor, cos: Tensor, sin: Tensor, packing: Packing, sizes: tuple[int, int, int], scale: float
    ) -> Tensor:
        from laurel.models.kernels import rows_triton

        shared = packing.shared
        tokens = qkv.shape[0] if shared is None else shared.source.numel()
        query, key, value = rows_triton.turned(qkv, cos, sin, None if shared is None else shared.source, tokens, sizes)
        bounds, longest = (packing.cu_queries, packing.cu_seqlens), (packing.max_queries, packing.max_seqlen)
        found = flash(query, key, value, bounds, longest, scale)
        ctx.save_for_backward(query, key, value, cos, sin, *found)
        ctx.packing, ctx.scale = packing, scale
        return found[0].flatten(1)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        from laurel.models.kernels import rows_triton

        query, key, value, cos, sin, *found = ctx.saved_tensors
        packing: Packing = ctx.packing
        bounds, longest = (packing.cu_queries, packing.cu_seqlens), (packing.max_queries, packing.max_seqlen)
        gradients = flash_gradients(
            grad.view_as(query).contiguous(), query, key, value, tuple(found), bounds, longest, ctx.scale
        )
        members = None if packing.shared is None else (packing.shared.offsets, packing.shared.members)
        return rows_triton.turned_back(*gradients, cos, sin, members), *(None,) * 5
