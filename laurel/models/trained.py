"""The steps of a trained layer between its matrix products: differentiable, one kernel each way on a GPU, and plain
torch elsewhere. What layers add up stays float32 (see models/kernels/layers.py)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from laurel.models.kernels.layers import Activation, Norm, gated, rms_norm


def add_norm(hidden: Tensor, update: Tensor | None, norm: Norm) -> tuple[Tensor, Tensor]:
    """hidden (n, H) float32 plus update (n, H), and the norm of it in the weight's dtype."""
    if hidden.is_cuda:
        return _AddNorm.apply(hidden, update, norm.weight, norm.eps, norm.around_one)
    summed = hidden if update is None else hidden + update
    return summed, rms_norm(summed, norm)


def gate(gate_up: Tensor, activation: Activation) -> Tensor:
    """``activation(gate) * up`` of gate_up (n, 2 I): (n, I)."""
    return _Gate.apply(gate_up, activation) if gate_up.is_cuda else gated(gate_up, activation)


class _AddNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, update: Tensor | None, weight: Tensor, eps: float, around_one: bool
    ) -> tuple[Tensor, Tensor]:
        from laurel.models.kernels import train_triton

        summed, out, scales = train_triton.add_norm(hidden, update, weight, eps, around_one)
        ctx.save_for_backward(summed, scales, weight)
        ctx.around_one, ctx.update = around_one, None if update is None else update.dtype
        # Passed through even if nothing is added: both gradients of it then meet in one kernel
        return summed.view_as(summed), out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, d_summed: Tensor, d_out: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        from laurel.models.kernels import train_triton

        summed, scales, weight = ctx.saved_tensors
        d_hidden, d_update, d_weight = train_triton.add_norm_back(
            summed, scales, weight, d_summed, d_out, around_one=ctx.around_one, update=ctx.update
        )
        return d_hidden, d_update, d_weight, None, None


class _Gate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate_up: Tensor, activation: Activation) -> Tensor:
        ctx.save_for_backward(gate_up)
        ctx.activation = activation
        return gated(gate_up, activation)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        from laurel.models.kernels import train_triton

        (gate_up,) = ctx.saved_tensors
        return train_triton.gated_back(gate_up, grad, ctx.activation), None
