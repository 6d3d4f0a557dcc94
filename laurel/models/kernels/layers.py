"""The steps of a decoder layer between its matrix products. On a GPU each is one kernel; elsewhere plain torch.

What layers add up stays float32 from the embedding to the last norm, here and in models/layer.py, which trains: the
Hugging Face modules round it to bfloat16 after each layer, which makes a rollout's log-probabilities differ
from the learner's by half as much again, or more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

Activation = Literal["silu", "gelu_pytorch_tanh", "gelu"]


@dataclass(frozen=True)
class Norm:
    """An RMS norm: weight (H,), and whether the weight is stored as its difference from 1 (Gemma)."""

    weight: Tensor
    eps: float
    around_one: bool = False


def add_rms_norm(residual: Tensor, update: Tensor | None, norm: Norm) -> Tensor:
    """``residual`` (n, H) float32 += ``update`` (n, H), in place, and the norm (n, H) of the sum in the weight's dtype.

    Zhang and Sennrich 2019 (arXiv:1910.07467), equation 4: ``x / sqrt(mean(x^2) + eps) * weight``, in float32.
    """
    if residual.is_cuda:
        from laurel.models.kernels import layers_triton

        return layers_triton.add_rms_norm(residual, update, norm.weight, norm.eps, norm.around_one)
    if update is not None:
        residual += update
    return rms_norm(residual, norm)


def rms_norm(x: Tensor, norm: Norm) -> Tensor:
    """The norm over the last dimension in the weight's dtype, in plain torch."""
    wide = x.float()
    wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + norm.eps)
    weight = norm.weight.float()
    return (wide * (1.0 + weight if norm.around_one else weight)).to(norm.weight.dtype)


@dataclass(frozen=True)
class Rope:
    """Rotary embedding: cosines and sines (max_len, D / 2) of every position, rounded as the model rounds them."""

    cos: Tensor
    sin: Tensor


@dataclass(frozen=True)
class HeadNorms:
    """Norms of each query and key head before the rotary embedding (Qwen3): weights (D,)."""

    query: Tensor
    key: Tensor
    eps: float


def rope_into_cache(
    qkv: Tensor,
    positions: Tensor,
    places: Tensor,
    keys: Tensor,
    values: Tensor,
    *,
    heads: int,
    rope: Rope,
    norms: HeadNorms | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Rotate queries and keys in place and write keys and values into a layer's cache.

    qkv (n, (Hq + 2 Hkv) * D), positions (n,) int64, places (n,) int64: where in the cache each token belongs, counted
    over pages end to end. keys and values (pages, Hkv, page, D). Returns views of ``qkv``: query (n, Hq, D), key and
    value (n, Hkv, D). Su et al. 2021 (arXiv:2104.09864), equation 34, with halves instead of pairs.
    """
    _, kv_heads, page, dim = keys.shape
    if qkv.is_cuda:
        from laurel.models.kernels import layers_triton

        weights = None if norms is None else (norms.query, norms.key, norms.eps)
        layers_triton.rope_into_cache(qkv, positions, places, keys, values, heads, (rope.cos, rope.sin), weights)
    split = qkv.view(qkv.shape[0], heads + 2 * kv_heads, dim)
    query, key, value = split[:, :heads], split[:, heads : heads + kv_heads], split[:, heads + kv_heads :]
    if not qkv.is_cuda:
        if norms is not None:
            query.copy_(rms_norm(query, Norm(norms.query, norms.eps)))
            key.copy_(rms_norm(key, Norm(norms.key, norms.eps)))
        cos, sin = (table[positions, None].float() for table in (rope.cos, rope.sin))
        for x in (query, key):
            first, second = x.float().chunk(2, -1)
            x.copy_(torch.cat((first * cos - second * sin, second * cos + first * sin), -1))
        keys[places // page, :, places % page] = key
        values[places // page, :, places % page] = value
    return query, key, value


def gated(gate_up: Tensor, activation: Activation) -> Tensor:
    """``activation(gate) * up`` of ``gate_up`` (n, 2 I), gate first: (n, I). Shazeer 2020 (arXiv:2002.05202)."""
    if gate_up.is_cuda:
        from laurel.models.kernels import layers_triton

        return layers_triton.gated(gate_up, activation)
    gate, up = gate_up.chunk(2, -1)
    if activation == "silu":
        return functional.silu(gate) * up
    return functional.gelu(gate, approximate="none" if activation == "gelu" else "tanh") * up
