"""Attention of one new token per sequence over keys and values that lie in pages."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Pages:
    """Whose pages n rows attend to. Row r is the sequence in slot ``slots[r]``, which has ``lengths[r]`` tokens in the
    cache; ``table[slot, i]`` is the page of its tokens i * page to (i + 1) * page - 1. int32 (n,), (n,), (slots, P)."""

    slots: Tensor
    lengths: Tensor
    table: Tensor


def paged_attention(query: Tensor, keys: Tensor, values: Tensor, pages: Pages, *, scale: float, splits: int) -> Tensor:
    """query (n, Hq, D), keys and values (pages, Hkv, page, D) to (n, Hq * D). Query head h reads KV head h * Hkv / Hq.

    ``splits``: into how many parts a sequence's pages are divided among a GPU's processors, which pays for few rows.
    The result does not depend on it but for rounding.
    """
    if query.is_cuda:
        from laurel.models.kernels import paged_attention_triton

        return paged_attention_triton.paged_attention(
            query, keys, values, pages.slots, pages.lengths, pages.table, scale, splits
        )
    kv_heads, page, dim = keys.shape[1:]
    out = []
    for row, (slot, length) in enumerate(zip(pages.slots.tolist(), pages.lengths.tolist(), strict=True)):
        own = pages.table[slot, : math.ceil(length / page)].long()
        k, v = (x[own].transpose(0, 1).reshape(kv_heads, -1, dim)[:, :length] for x in (keys, values))
        q = query[row].view(kv_heads, -1, dim)
        weights = torch.softmax((q.float() @ k.float().transpose(1, 2)) * scale, -1)
        out.append((weights @ v.float()).reshape(-1))
    return torch.stack(out).to(query.dtype)


def splits_for(rows: int, kv_heads: int, pages: int, processors: int) -> int:
    """Parts that fill a GPU of so many processors about twice; one if rows alone do. A power of two, at most 16."""
    wanted = 2 * processors / (rows * kv_heads)
    return 1 << max(0, min(4, pages.bit_length() - 2, math.ceil(math.log2(wanted)) if wanted > 1 else 0))
