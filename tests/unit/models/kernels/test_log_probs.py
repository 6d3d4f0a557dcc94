"""Kernels of the log-prob head against autograd."""

from __future__ import annotations

import pytest
import torch


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("entropy", [False, True])
def test_forward_and_gradient(temperature: float, entropy: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    from laurel.models.kernels import log_probs_triton

    monkeypatch.setattr(log_probs_triton, "_BLOCK", 64)
    torch.manual_seed(0)
    logits = (torch.randn(6, 300) * 4).requires_grad_()
    targets = torch.tensor([0, 299, 64, 63, 128, 5])
    with torch.no_grad():
        logits[2, 100:] = float("-inf")
    p = torch.log_softmax(logits / temperature, -1)
    wanted = p.gather(1, targets[:, None])[:, 0]
    wanted_entropy = -torch.where(p.exp() > 0, p.exp() * p.clamp(min=-1e30), 0.0).sum(-1)
    log_probs, normalizers, entropies = log_probs_triton.take_log_probs(
        logits.detach(), targets, temperature, entropy=entropy
    )
    torch.testing.assert_close(log_probs, wanted.detach())
    torch.testing.assert_close(normalizers, torch.logsumexp(logits.detach() / temperature, -1))
    grad, grad_entropy = torch.randn(6), torch.randn(6)
    finite = torch.ones(6, dtype=torch.bool)
    loss = (wanted * grad).sum()
    if entropy:
        assert entropies is not None
        torch.testing.assert_close(entropies, wanted_entropy.detach())
        finite[2] = False  # autograd itself has no gradient of p log p at p = 0
        loss = loss + (wanted_entropy * grad_entropy).sum()
    loss.backward()
    found = log_probs_triton.gradient_of_logits(
        logits.detach(),
        targets,
        normalizers,
        grad,
        temperature,
        entropies=entropies,
        grad_entropies=grad_entropy if entropy else None,
        dtype=torch.float32,
    )
    assert logits.grad is not None
    assert found.isfinite().all()
    torch.testing.assert_close(found[finite], logits.grad[finite], atol=1e-5, rtol=1e-4)
