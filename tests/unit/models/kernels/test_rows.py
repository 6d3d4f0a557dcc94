"""Kernels of training's attention: forward and gradient against plain torch, shared prompts included."""

from __future__ import annotations

import pytest
import torch

from laurel.models.attention import Shared
from laurel.models.rows import _turned


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("dim", [16, 24])
def test_turned_and_back(shared: bool, dim: int) -> None:
    from laurel.models.kernels import rows_triton

    torch.manual_seed(0)
    sizes = heads, kv_heads, _ = 6, 2, dim
    computed = 7
    # Tokens 0 1 2 of a prompt stand in three rows, 3 to 6 are responses
    layout = Shared.of(torch.tensor([0, 1, 2, 3, 7, 8, 12]), torch.tensor([0, 1, 2, 3, 0, 1, 2, 4, 5, 0, 1, 2, 6]))
    source = layout.source if shared else torch.arange(computed)
    qkv = torch.randn(computed, (heads + 2 * kv_heads) * dim, requires_grad=True)
    angles = torch.rand(computed, dim // 2).repeat(1, 2)
    cos, sin = angles.cos(), angles.sin()

    query, key, value = qkv.view(computed, -1, dim).split((heads, kv_heads, kv_heads), 1)
    expected = [_turned(query, cos, sin), _turned(key, cos, sin)[source], value[source]]
    found = rows_triton.turned(qkv.detach(), cos, sin, source if shared else None, source.numel(), sizes)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other.detach())

    gradients = [torch.randn_like(x) for x in expected]
    torch.autograd.backward(expected, gradients)
    back = rows_triton.turned_back(*gradients, cos, sin, (layout.offsets, layout.members) if shared else None)
    torch.testing.assert_close(back, qkv.grad)


def test_members_of_a_computed_token() -> None:
    layout = Shared.of(torch.tensor([0, 1, 2, 5, 6]), torch.tensor([0, 1, 2, 0, 1, 3, 4]))
    assert layout.offsets.tolist() == [0, 2, 4, 5, 6, 7]
    assert layout.members.tolist() == [0, 3, 1, 4, 2, 5, 6]
