from __future__ import annotations

import pytest
import torch

from laurel.algos.value_loss import clipped_value_loss


def test_worked_examples() -> None:
    losses, watched = clipped_value_loss(
        values=torch.tensor([1.0, 0.25, 1.0]),
        old_values=torch.zeros(3),
        returns=torch.tensor([2.0, 2.0, -1.0]),
        clip_range=0.5,
    )
    # The third moved away from its return: the unclipped error 4 is the larger, so it is pulled back.
    assert losses.tolist() == pytest.approx([1.125, 1.53125, 2.0])
    assert watched["vf_clipfrac"].tolist() == [1, 0, 0]


def test_gradient_matches_finite_differences_in_every_branch() -> None:
    values = torch.tensor([1.0, 0.25, 1.0, -0.75], dtype=torch.float64, requires_grad=True)
    old, returns = torch.zeros(4, dtype=torch.float64), torch.tensor([2.0, 2.0, -1.0, -3.0], dtype=torch.float64)

    def losses(x: torch.Tensor) -> torch.Tensor:
        return clipped_value_loss(values=x, old_values=old, returns=returns, clip_range=0.5)[0]

    assert torch.autograd.gradcheck(losses, (values,))
    (gradient,) = torch.autograd.grad(losses(values).sum(), values)
    assert gradient.tolist() == pytest.approx([0.0, -1.75, 2.0, 0.0])
