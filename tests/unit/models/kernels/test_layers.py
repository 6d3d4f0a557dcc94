"""Each Triton kernel computes what the plain torch beside it computes."""

from __future__ import annotations

import pytest
import torch

from laurel.models.kernels import layers
from laurel.models.kernels.layers import HeadNorms, Norm, Rope


@pytest.mark.parametrize("around_one", [False, True])
@pytest.mark.parametrize("with_update", [False, True])
@pytest.mark.parametrize("width", [64, 100])
def test_norm_of_the_sum(around_one: bool, with_update: bool, width: int) -> None:
    torch.manual_seed(0)
    residual, update = torch.randn(5, width), torch.randn(5, width)
    norm = Norm(torch.randn(width), 1e-6, around_one)
    expected_residual = residual.clone()
    expected = layers.add_rms_norm(expected_residual, update if with_update else None, norm)
    from laurel.models.kernels import layers_triton

    out = layers_triton.add_rms_norm(residual, update if with_update else None, norm.weight, norm.eps, around_one)
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(residual, expected_residual)


@pytest.mark.parametrize("activation", ["silu", "gelu", "gelu_pytorch_tanh"])
def test_gated_activation(activation: layers.Activation) -> None:
    torch.manual_seed(0)
    from laurel.models.kernels import layers_triton

    gate_up = torch.randn(3, 2 * 1100) * 3
    torch.testing.assert_close(layers_triton.gated(gate_up, activation), layers.gated(gate_up, activation))


@pytest.mark.parametrize("dim", [16, 24])
@pytest.mark.parametrize("normed", [False, True])
def test_rope_and_cache(dim: int, normed: bool) -> None:
    torch.manual_seed(0)
    heads, kv_heads, tokens, pages, page = 6, 2, 5, 4, 8
    qkv = torch.randn(tokens, (heads + 2 * kv_heads) * dim)
    angles = torch.rand(30, dim // 2)
    rope = Rope(angles.cos(), angles.sin())
    norms = HeadNorms(torch.randn(dim), torch.randn(dim), 1e-6) if normed else None
    positions, places = torch.tensor([0, 29, 3, 4, 11]), torch.tensor([8, 31, 9, 16, 23])
    caches = [torch.zeros(pages, kv_heads, page, dim) for _ in range(4)]
    from laurel.models.kernels import layers_triton

    plain, rotated = qkv.clone(), qkv.clone()
    query, key, _ = layers.rope_into_cache(
        plain, positions, places, caches[0], caches[1], heads=heads, rope=rope, norms=norms
    )
    weights = None if norms is None else (norms.query, norms.key, norms.eps)
    layers_triton.rope_into_cache(
        rotated, positions, places, caches[2], caches[3], heads, (rope.cos, rope.sin), weights
    )
    torch.testing.assert_close(rotated, plain)
    torch.testing.assert_close(caches[2], caches[0])
    torch.testing.assert_close(caches[3], caches[1])
    # The reference itself: token 1 at position 29 lies in page 3 at 7, and values are not turned
    torch.testing.assert_close(caches[1][3, :, 7], qkv[1].view(-1, dim)[heads + kv_heads :])
    assert caches[0].count_nonzero() == key.numel()
    if not normed:
        before = qkv[1].view(-1, dim)[0]
        first, second = before[: dim // 2], before[dim // 2 :]
        torch.testing.assert_close(query[1, 0, : dim // 2], first * rope.cos[29] - second * rope.sin[29])
        torch.testing.assert_close(query[1, 0, dim // 2 :], second * rope.cos[29] + first * rope.sin[29])
