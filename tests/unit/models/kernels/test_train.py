"""Kernels of trained layers against autograd of the plain forms."""

from __future__ import annotations

import pytest
import torch

from laurel.models.kernels.layers import Activation, Norm, gated, rms_norm


@pytest.mark.parametrize("around_one", [False, True])
@pytest.mark.parametrize("with_update", [False, True])
def test_add_norm(with_update: bool, around_one: bool) -> None:
    from laurel.models.kernels import train_triton

    torch.manual_seed(0)
    rows, width = 37, 100  # several programs, the last of them not full
    hidden, update = torch.randn(rows, width, requires_grad=True), torch.randn(rows, width, requires_grad=True)
    weight = torch.randn(width, requires_grad=True)
    expected_sum = hidden + update if with_update else hidden * 1.0
    expected = rms_norm(expected_sum, Norm(weight, 1e-6, around_one))
    summed, out, scales = train_triton.add_norm(
        hidden.detach(), update.detach() if with_update else None, weight.detach(), 1e-6, around_one
    )
    torch.testing.assert_close(summed, expected_sum.detach())
    torch.testing.assert_close(out, expected.detach())

    d_summed, d_out = torch.randn(rows, width), torch.randn(rows, width)
    torch.autograd.backward([expected_sum, expected], [d_summed, d_out])
    d_hidden, d_update, d_weight = train_triton.add_norm_back(
        summed, scales, weight.detach(), d_summed, d_out, around_one=around_one,
        update=torch.float32 if with_update else None,
    )  # fmt: skip
    assert hidden.grad is not None
    assert weight.grad is not None
    torch.testing.assert_close(d_hidden, hidden.grad, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(d_weight, weight.grad, atol=1e-5, rtol=1e-4)
    if with_update:
        assert d_update is not None
        torch.testing.assert_close(d_update, hidden.grad, atol=1e-5, rtol=1e-4)
    else:
        assert d_update is None


@pytest.mark.parametrize("activation", ["silu", "gelu", "gelu_pytorch_tanh"])
def test_gate(activation: Activation) -> None:
    from laurel.models.kernels import train_triton

    torch.manual_seed(0)
    gate_up = (torch.randn(3, 2 * 1100) * 2).requires_grad_()
    grad = torch.randn(3, 1100)
    gated(gate_up, activation).backward(grad)
    assert gate_up.grad is not None
    found = train_triton.gated_back(gate_up.detach(), grad, activation)
    torch.testing.assert_close(found, gate_up.grad, atol=1e-5, rtol=1e-4)
