"""The log-prob head: log-probabilities of given tokens without ever holding logits of all tokens at once."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

# Elements of one chunk's float32 logits: 256 MiB on a CPU, 5 GiB elsewhere.
_CHUNK_ELEMENTS = {"cpu": 1 << 26}
_CHUNK_ELEMENTS_ELSEWHERE = 5 << 28
_TILE = 1024  # tokens of a chunk on a GPU are a multiple of it: products of other sizes leave processors idle


def chunk_tokens(vocabulary: int, device: torch.device) -> int:
    """How many tokens go through the head together."""
    if device.type in _CHUNK_ELEMENTS:
        return max(16, _CHUNK_ELEMENTS[device.type] // vocabulary)
    return max(1, _CHUNK_ELEMENTS_ELSEWHERE // vocabulary // _TILE) * _TILE


def token_log_probs(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    *,
    temperature: float = 1.0,
    chunk: int | None = None,
    entropy: bool = False,
    bias: Tensor | None = None,
    keep: int = 0,
) -> tuple[Tensor, Tensor | None]:
    """``log_softmax(z / temperature)[target]`` with ``z = hidden @ weight.T + bias``, in float32.

    hidden (T, H), weight (V, H), targets (T,) int64, bias (V,) to log-probs (T,), and with ``entropy`` the entropy
    (T,) of the same distribution in nats. Logits exist for ``chunk`` tokens at a time, forward and backward (which
    computes them again, but for ``keep`` tokens on a GPU, whose logits are held). Differentiable once in hidden, weight
    and bias, through both results.
    """
    if temperature <= 0:
        raise ValueError(f"temperature={temperature} gives no distribution; it must be above 0")
    size = chunk or chunk_tokens(weight.shape[0], hidden.device)
    if hidden.is_cuda and hidden.dtype == torch.bfloat16 and bias is None:
        log_probs, entropies = _FastHead.apply(hidden, weight, targets, temperature, size, entropy, keep)
        return log_probs, entropies if entropy else None
    log_probs, entropies = _Head.apply(hidden, weight, bias, targets, temperature, size, entropy)
    return log_probs, entropies if entropy else None


@torch.no_grad()
def logit_grad_squares(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    *,
    temperature: float = 1.0,
    chunk: int | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    """``1 - 2 p[target] + sum of p^2`` with ``p = softmax(z / temperature)``, (T,) float32, arguments as above.

    That is the squared norm of onehot(target) - p, the gradient of log p[target] in the scaled logits. It has no
    gradient of its own. Example: p = (1/4, 3/4) and the first target give 1 - 1/2 + 10/16 = 1.125.
    """
    size = chunk or chunk_tokens(weight.shape[0], hidden.device)
    squares = []
    for start in range(0, targets.numel(), size):
        part = slice(start, start + size)
        probs = _logits(hidden[part], weight, bias, temperature).softmax(-1)
        chosen = targets[part, None]
        probs.scatter_add_(-1, chosen, probs.new_full(chosen.shape, -1.0))  # a sum of squares is never below 0
        squares.append(torch.linalg.vector_norm(probs, dim=-1).square())
    return torch.cat(squares) if squares else hidden.new_zeros(0, dtype=torch.float32)


def _logits(hidden: Tensor, weight: Tensor, bias: Tensor | None, temperature: float) -> Tensor:
    """(C, V), scaled; float32, or float64 if the inputs are."""
    logits = hidden @ weight.t()
    if logits.dtype not in (torch.float32, torch.float64):
        logits = logits.float()
    if bias is not None:
        logits += bias
    return logits if temperature == 1.0 else logits.div_(temperature)


def _fast_logits(hidden: Tensor, weight: Tensor) -> Tensor:
    """(C, V) float32, not scaled, added up in float32 on the tensor cores."""
    return torch.mm(hidden, weight.t(), out_dtype=torch.float32)


class _FastHead(torch.autograd.Function):
    """_Head on a GPU: each chunk of logits is read once going forward and once going back, by a kernel of its own.

    Logits of the first ``kept`` tokens are held until the backward pass instead of being computed again.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        targets: Tensor,
        temperature: float,
        chunk: int,
        entropy: bool,
        kept: int,
    ) -> tuple[Tensor, Tensor]:
        from laurel.models.kernels.log_probs_triton import take_log_probs

        found: list[tuple[Tensor, Tensor, Tensor | None]] = []
        held: list[Tensor | None] = []
        for start in range(0, targets.numel(), chunk):
            part = slice(start, start + chunk)
            logits = _fast_logits(hidden[part], weight)
            found.append(take_log_probs(logits, targets[part], temperature, entropy=entropy))
            held.append(logits if start + chunk <= kept else None)
            del logits
        log_probs, normalizers = (torch.cat([one[i] for one in found]) for i in (0, 1))  # type: ignore[misc]
        entropies = torch.cat([one[2] for one in found]) if entropy else torch.zeros_like(log_probs)  # type: ignore[misc]
        ctx.save_for_backward(hidden, weight, targets, normalizers, entropies)
        ctx.temperature, ctx.chunk, ctx.held = temperature, chunk, held
        ctx.set_materialize_grads(False)  # an entropy that is only watched has no gradient, which is cheaper than zeros
        return log_probs, entropies

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_log_probs: Tensor | None, grad_entropy: Tensor | None) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        from laurel.models.kernels.log_probs_triton import gradient_of_logits

        hidden, weight, targets, normalizers, entropies = ctx.saved_tensors
        grad_log_probs = torch.zeros_like(normalizers) if grad_log_probs is None else grad_log_probs.contiguous()
        grad_entropy = None if grad_entropy is None else grad_entropy.contiguous()
        grad_hidden = torch.empty_like(hidden)
        grad_weight = torch.zeros_like(weight, dtype=torch.float32) if ctx.needs_input_grad[1] else None
        held, ctx.held = ctx.held, []
        for number, start in enumerate(range(0, targets.numel(), ctx.chunk)):
            part = slice(start, start + ctx.chunk)
            logits = held[number]
            held[number] = None
            if logits is None:
                logits = _fast_logits(hidden[part], weight)
            grad = gradient_of_logits(
                logits,
                targets[part],
                normalizers[part],
                grad_log_probs[part],
                ctx.temperature,
                entropies=entropies[part],
                grad_entropies=None if grad_entropy is None else grad_entropy[part],
                dtype=hidden.dtype,
            )
            del logits
            grad_hidden[part] = grad @ weight
            if grad_weight is not None:
                torch.addmm(grad_weight, grad.t(), hidden[part], out_dtype=torch.float32, out=grad_weight)
            del grad  # before the next chunk's logits and gradient come
        return grad_hidden, None if grad_weight is None else grad_weight.to(weight.dtype), *(None,) * 5


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
