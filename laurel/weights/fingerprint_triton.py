"""Triton kernel of fingerprint.py: the checksum of a tensor in one launch, without waiting for the result."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 4096


@triton.jit
def _add(words, total, count, PERIOD: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK).to(tl.int64)
    word = tl.load(words + at, mask=at < count, other=0)
    mixed = (at % PERIOD + 1) * 0x2545F4914F6CDD1D
    mixed = (mixed ^ ((mixed >> 29) & 0x7FFFFFFFF)) * 0x5851F42D4C957F2D
    sums = tl.sum(word * (mixed | 1) * (2 * (at // PERIOD) + 1), 0)
    tl.atomic_add(total, sums)  # of integers: the order does not matter


def add_checksum(words: Tensor, total: Tensor, period: int) -> None:
    """Add the checksum of ``words`` (n,) int64 to ``total``, a single int64, modulo 2**64."""
    count = words.numel()
    _add[(triton.cdiv(count, _BLOCK),)](words, total, count, PERIOD=period, BLOCK=_BLOCK, num_warps=8)
