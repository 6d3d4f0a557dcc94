"""The KV cache in pages: a sequence holds as many as its tokens need, and sequences of one prompt share its pages."""

from __future__ import annotations

import torch
from torch import Tensor

from laurel.models.slots import CacheShape

PAGE = 64
"""Tokens per page, which is also the tile that attention reads."""


class PagedCache:
    """``data`` (layers, 2, pages, kv_heads, PAGE, head_dim): keys at 0, values at 1.

    Page 0 belongs to nobody: what idle rows of a step write lands there.
    """

    def __init__(self, shape: CacheShape, *, pages: int, dtype: torch.dtype, device: torch.device | str):
        self.shape, self.pages = shape, pages
        # Zero at first: a masked place must still hold a finite number
        self.data = torch.zeros(
            shape.layers, 2, pages, shape.kv_heads, PAGE, shape.head_dim, dtype=dtype, device=device
        )
        self.planes: list[tuple[Tensor, Tensor]] = [(layer[0], layer[1]) for layer in self.data]

    def copy(self, sources: Tensor, targets: Tensor) -> None:
        """The pages ``sources`` (k,) int64 into the pages ``targets`` (k,)."""
        self.data[:, :, targets] = self.data[:, :, sources]


def pages_for(tokens: int) -> int:
    """Pages that hold so many tokens. Example: 65 tokens are 2 pages."""
    return -(-tokens // PAGE)


def page_bytes(shape: CacheShape, dtype: torch.dtype) -> int:
    """Memory of one page."""
    return shape.bytes_per_token(dtype) * PAGE
