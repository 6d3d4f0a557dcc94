"""Attention over pages against plain attention, and the Triton kernel against the plain form."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from laurel.models.kernels.paged_attention import Pages, paged_attention, splits_for


def _case(dim: int, heads: int, kv_heads: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, Pages]:
    torch.manual_seed(0)
    page = 16
    lengths = [1, 16, 17, 50]
    table = torch.zeros(5, 4, dtype=torch.int32)
    order = torch.randperm(9) + 1
    at = 0
    for slot, length in zip((3, 0, 4, 1), lengths, strict=True):
        count = -(-length // page)
        table[slot, :count] = order[at : at + count].int()
        at += count
    keys, values = (torch.randn(10, kv_heads, page, dim) for _ in range(2))
    # A strided view, as the engine's queries are
    query = torch.randn(4, heads + 2, dim)[:, :heads]
    return query, keys, values, Pages(torch.tensor([3, 0, 4, 1], dtype=torch.int32), torch.tensor(lengths).int(), table)


@pytest.mark.parametrize(("dim", "heads", "kv_heads"), [(32, 14, 2), (24, 4, 4), (64, 8, 1)])
def test_against_plain_attention(dim: int, heads: int, kv_heads: int) -> None:
    query, keys, values, pages = _case(dim, heads, kv_heads)
    out = paged_attention(query, keys, values, pages, scale=0.3, splits=1)
    for row, (slot, length) in enumerate(zip(pages.slots.tolist(), pages.lengths.tolist(), strict=True)):
        own = pages.table[slot].long()
        k, v = (x[own].transpose(0, 1).reshape(kv_heads, -1, dim)[None, :, :length] for x in (keys, values))
        wanted = scaled_dot_product_attention(query[row][None, :, None], k, v, scale=0.3, enable_gqa=True)
        torch.testing.assert_close(out[row], wanted.reshape(-1))


@pytest.mark.parametrize("splits", [1, 2, 4, 8])
@pytest.mark.parametrize(("dim", "heads", "kv_heads"), [(32, 14, 2), (24, 4, 4), (64, 8, 1)])
def test_kernel(dim: int, heads: int, kv_heads: int, splits: int) -> None:
    query, keys, values, pages = _case(dim, heads, kv_heads)
    expected = paged_attention(query, keys, values, pages, scale=0.3, splits=1)
    from laurel.models.kernels import paged_attention_triton

    out = paged_attention_triton.paged_attention(
        query, keys, values, pages.slots, pages.lengths, pages.table, 0.3, splits
    )
    torch.testing.assert_close(out, expected)


def test_few_rows_are_split() -> None:
    assert splits_for(1024, 2, 640 // 64, 132) == 1
    assert splits_for(64, 2, 10, 132) == 4
    assert splits_for(4, 2, 10, 132) == 4  # no more parts than there are pages to divide
    assert splits_for(1, 8, 512, 132) == 16
