"""The log-prob head: log-probabilities of given tokens without ever holding logits of all tokens at once."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

# Elements of one chunk's float32 logits: 256 MiB on a CPU, 1 GiB elsewhere.
_CHUNK_ELEMENTS = {"cpu": 1 << 26}
_CHUNK_ELEMENTS_ELSEWHERE = 1 << 28


def chunk_tokens(vocabulary: int, device: torch.device) -> int:
    """How many tokens go through the head together."""
    return max(16, _CHUNK_ELEMENTS.get(device.type, _CHUNK_ELEMENTS_ELSEWHERE) // vocabulary)


def token_log_probs(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    *,
    temperature: float = 1.0,
    chunk: int | None = None,
    entropy: bool = False,
    bias: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """``log_softmax(z / temperature)[target]`` with ``z = hidden @ weight.T + bias``, in float32.

    hidden (T, H), weight (V, H), targets (T,) int64, bias (V,) to log-probs (T,), and with ``entropy`` the entropy
    (T,) of the same distribution in nats. Logits exist for ``chunk`` tokens at a time, forward and backward (which
    computes them again). Differentiable once in hidden, weight and bias, through both results.
    """
    if temperature <= 0:
        raise ValueError(f"temperature={temperature} gives no distribution; it must be above 0")
    size = chunk or chunk_tokens(weight.shape[0], hidden.device)
    log_probs, entropies = _Head.apply(hidden, weight, bias, targets, temperature, size, entropy)
    return log_probs, entropies if entropy else None


def _logits(hidden: Tensor, weight: Tensor, bias: Tensor | None, temperature: float) -> Tensor:
    """(C, V), scaled; float32, or float64 if the inputs are."""
    logits = hidden @ weight.t()
    if logits.dtype not in (torch.float32, torch.float64):
        logits = logits.float()
    if bias is not None:
        logits += bias
    return logits if temperature == 1.0 else logits.div_(temperature)


class _Head(torch.autograd.Function):
    """With p = softmax(z): d log p[y] / dz = onehot(y) - p, and d entropy / dz = -p * (log p + entropy)."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        temperature: float,
        chunk: int,
        entropy: bool,
    ) -> tuple[Tensor, Tensor]:
        kind = torch.float64 if hidden.dtype == torch.float64 else torch.float32
        log_probs = hidden.new_empty(targets.shape, dtype=kind)
        normalizers, entropies = torch.empty_like(log_probs), torch.zeros_like(log_probs)
        for start in range(0, targets.numel(), chunk):
            part = slice(start, start + chunk)
            logits = _logits(hidden[part], weight, bias, temperature)
            normalizer = logits.logsumexp(-1)
            normalizers[part] = normalizer
            log_probs[part] = logits.gather(-1, targets[part, None])[:, 0] - normalizer
            if entropy:
                # sum over p * z; exp of what is left of z after the sum needs no second (C, V) tensor
                probs = (logits - normalizer[:, None]).exp_()
                entropies[part] = normalizer - probs.mul_(logits).sum(-1)
        ctx.save_for_backward(hidden, weight, bias, targets, normalizers, entropies)
        ctx.temperature, ctx.chunk, ctx.entropy = temperature, chunk, entropy
        return log_probs, entropies

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_log_probs: Tensor, grad_entropy: Tensor | None) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        hidden, weight, bias, targets, normalizers, entropies = ctx.saved_tensors
        with_entropy = ctx.entropy and grad_entropy is not None and bool(grad_entropy.any())
        grad_hidden = torch.empty_like(hidden) if ctx.needs_input_grad[0] else None
        # Added up over chunks in float32 whatever the weight's dtype
        grad_weight = torch.zeros_like(weight, dtype=normalizers.dtype) if ctx.needs_input_grad[1] else None
        grad_bias = torch.zeros_like(bias, dtype=normalizers.dtype) if ctx.needs_input_grad[2] else None
        for start in range(0, targets.numel(), ctx.chunk):
            part = slice(start, start + ctx.chunk)
            grad = grad_log_probs[part, None]
            log_p = _logits(hidden[part], weight, bias, ctx.temperature).sub_(normalizers[part, None])
            if with_entropy:
                assert grad_entropy is not None
                factor = (log_p + entropies[part, None]).mul_(grad_entropy[part, None]).add_(grad)
                grad_logits = log_p.exp_().mul_(factor).neg_()
            else:
                grad_logits = log_p.exp_().mul_(-grad)
            grad_logits.scatter_add_(-1, targets[part, None], grad)
            if ctx.temperature != 1.0:
                grad_logits.div_(ctx.temperature)
            if grad_bias is not None:
                grad_bias += grad_logits.sum(0)
            grad_logits = grad_logits.to(hidden.dtype)
            if grad_hidden is not None:
                grad_hidden[part] = grad_logits @ weight
            if grad_weight is not None:
                _add_product(grad_weight, grad_logits, hidden[part])
        return (
            grad_hidden,
            None if grad_weight is None else grad_weight.to(weight.dtype),
            None if grad_bias is None else grad_bias.to(bias.dtype),
            *(None,) * 4,
        )


def _add_product(total: Tensor, grad_logits: Tensor, hidden: Tensor) -> None:
    """total (V, H) += grad_logits.T @ hidden."""
    if total.dtype == hidden.dtype:
        total.addmm_(grad_logits.t(), hidden)
    else:
        total += grad_logits.t() @ hidden
