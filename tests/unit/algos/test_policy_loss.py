from __future__ import annotations

import math

import pytest
import torch

from laurel.algos.policy_loss import vanilla


def run(ratio: list[float], advantages: list[float], **clips: float) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    settings = {"clip_low": 0.2, "clip_high": 0.2, "clip_c": 3.0} | clips
    log_probs = torch.tensor(ratio, dtype=torch.float64).log()
    return vanilla(
        log_probs=log_probs,
        old_log_probs=torch.zeros_like(log_probs),
        advantages=torch.tensor(advantages, dtype=torch.float64),
        **settings,
    )


def test_worked_examples() -> None:
    losses, watched = run([1.5, 0.5, 0.5, 5.0, 1.0], [1.0, 1.0, -1.0, -1.0, 2.0])
    assert losses.tolist() == pytest.approx([-1.2, -0.5, 0.8, 3.0, -2.0])
    assert watched["pg_clipfrac"].tolist() == [1, 0, 1, 0, 0]
    assert watched["pg_clipfrac_lower"].tolist() == [0, 0, 0, 1, 0]
    assert watched["ppo_kl"].tolist() == pytest.approx([-math.log(1.5), math.log(2), math.log(2), -math.log(5), 0])


def test_ranges_below_and_above_differ() -> None:
    losses, _ = run([1.5, 0.5], [1.0, -1.0], clip_low=0.3, clip_high=0.4)
    assert losses.tolist() == pytest.approx([-1.4, 0.7])


def test_log_ratio_is_kept_finite() -> None:
    losses, _ = vanilla(
        log_probs=torch.tensor([0.0, -900.0]),
        old_log_probs=torch.tensor([-900.0, 0.0]),
        advantages=torch.tensor([-1.0, 1.0]),
        clip_low=0.2,
        clip_high=0.2,
        clip_c=1e12,
    )
    assert losses.tolist() == pytest.approx([math.exp(20), -math.exp(-20)])


# One token in each branch: free, clipped above, free below; clipped below, free, dual clip.
RATIOS, ADVANTAGES = [1.1, 1.5, 0.5, 0.5, 1.1, 5.0], [1.0, 1.0, 1.0, -1.0, -1.0, -1.0]


def test_gradient_matches_finite_differences_in_every_branch() -> None:
    log_probs = torch.tensor(RATIOS, dtype=torch.float64).log().requires_grad_()
    advantages = torch.tensor(ADVANTAGES, dtype=torch.float64)

    def losses(x: torch.Tensor) -> torch.Tensor:
        return vanilla(
            log_probs=x,
            old_log_probs=torch.zeros_like(x),
            advantages=advantages,
            clip_low=0.2,
            clip_high=0.2,
            clip_c=3.0,
        )[0]

    assert torch.autograd.gradcheck(losses, (log_probs,))
    (gradient,) = torch.autograd.grad(losses(log_probs).sum(), log_probs)
    # d(-A * ratio) / d log_prob = -A * ratio where no clip holds: raising a good token's probability lowers the loss.
    assert gradient.tolist() == pytest.approx([-1.1, 0.0, -0.5, 0.0, 1.1, 0.0])
