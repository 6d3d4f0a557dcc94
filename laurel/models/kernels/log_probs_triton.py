"""Triton kernels of the log-prob head (models/heads.py): what is taken from a chunk of logits, and its gradient."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 4096


@triton.jit
def _take(
    logits, targets, log_probs, normalizers, entropies, vocab, inverse, ENTROPY: tl.constexpr, BLOCK: tl.constexpr
):
    """One row, read once: the running maximum is one number, the sums of exponentials and of exponentials times logits
    are kept by lane."""
    row = tl.program_id(0).to(tl.int64)
    line = logits + row * vocab
    best = float("-inf")
    total = tl.zeros((BLOCK,), tl.float32)
    moment = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, vocab, BLOCK):
        at = start + tl.arange(0, BLOCK)
        x = tl.load(line + at, mask=at < vocab, other=float("-inf")).to(tl.float32) * inverse
        higher = tl.maximum(best, tl.max(x, 0))
        # A row that so far is nothing but minus infinity holds no mass
        anchor = tl.where(higher == float("-inf"), 0.0, higher)
        fade, new = tl.exp(best - anchor), tl.exp(x - anchor)
        total = total * fade + new
        if ENTROPY:
            moment = moment * fade + tl.where(new > 0.0, new * x, 0.0)
        best = higher
    mass = tl.sum(total, 0)
    normalizer = best + tl.log(mass)
    chosen = tl.load(line + tl.load(targets + row)).to(tl.float32) * inverse
    tl.store(log_probs + row, chosen - normalizer)
    tl.store(normalizers + row, normalizer)
    if ENTROPY:
        tl.store(entropies + row, normalizer - tl.sum(moment, 0) / mass)


def take_log_probs(
    logits: Tensor, targets: Tensor, temperature: float, *, entropy: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """logits (C, V) and targets (C,) to log-probs, log normalizers and entropies (C,) float32 at ``temperature``."""
    rows, vocab = logits.shape
    log_probs = torch.empty(rows, dtype=torch.float32, device=logits.device)
    normalizers, entropies = torch.empty_like(log_probs), torch.empty_like(log_probs) if entropy else None
    _take[(rows,)](
        logits, targets, log_probs, normalizers, log_probs if entropies is None else entropies, vocab,
        1.0 / temperature, ENTROPY=entropy, BLOCK=_BLOCK, num_warps=8,
    )  # fmt: skip
    return log_probs, normalizers, entropies


@triton.jit
def _gradient(
    logits, targets, normalizers, entropies, grad_log_probs, grad_entropies, grad, vocab, inverse,
    ENTROPY: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < vocab
    x = tl.load(logits + row * vocab + at, mask=inside, other=0.0).to(tl.float32) * inverse
    log_p = x - tl.load(normalizers + row)
    p = tl.exp(log_p)
    weight = tl.load(grad_log_probs + row)
    out = tl.where(at == tl.load(targets + row), weight, 0.0) - weight * p
    if ENTROPY:
        out -= tl.load(grad_entropies + row) * tl.where(p > 0.0, p * (log_p + tl.load(entropies + row)), 0.0)
    tl.store(grad + row * vocab + at, (out * inverse).to(grad.dtype.element_ty), mask=inside)


def gradient_of_logits(
    logits: Tensor,
    targets: Tensor,
    normalizers: Tensor,
    grad_log_probs: Tensor,
    temperature: float,
    *,
    entropies: Tensor | None,
    grad_entropies: Tensor | None,
    dtype: torch.dtype,
) -> Tensor:
    """(C, V) in ``dtype``; of the entropies too if ``grad_entropies`` is given."""
    rows, vocab = logits.shape
    grad = torch.empty(rows, vocab, dtype=dtype, device=logits.device)
    _gradient[(rows, triton.cdiv(vocab, _BLOCK))](
        logits, targets, normalizers,
        normalizers if entropies is None else entropies,
        grad_log_probs.contiguous(),
        (grad_log_probs if grad_entropies is None else grad_entropies).contiguous(),
        grad, vocab, 1.0 / temperature,
        ENTROPY=grad_entropies is not None, BLOCK=_BLOCK, num_warps=8,
    )  # fmt: skip
    return grad
