from __future__ import annotations

from functools import partial

import pytest
import torch
from unit.algos import reference_losses as reference

from laurel.algos.aggregate import AGGREGATIONS
from laurel.algos.losses import CriticLoss
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


@pytest.mark.parametrize("mode", list(AGGREGATIONS))
def test_equals_a_slow_reference_on_ragged_batches(random_batch, mode: str) -> None:
    """Values and, by central differences, the gradient; rows of weight 0 and tool tokens have none."""
    batch = random_batch(5, row_count=6).with_(weight=torch.tensor([1.0] * 5 + [0.0]))
    critic = CriticLoss(partial(clipped_value_loss, clip_range=0.5), mode, 7.0)
    where = [torch.nonzero((batch.row_of_token == row) & batch.response_mask)[:, 0].tolist() for row in range(6)]
    old, returns = batch.values.double().tolist(), batch.returns.double().tolist()

    def expected(values: list[float]) -> float:
        losses = []
        for tokens in where:
            row = []
            for t in tokens:
                near = min(max(values[t], old[t] - 0.5), old[t] + 0.5)
                row.append(max((values[t] - returns[t]) ** 2, (near - returns[t]) ** 2) / 2)
            losses.append(row)
        return reference.aggregate(losses, batch.weight.tolist(), mode, 7.0)

    leaf = batch.tokens["log_probs"].double().requires_grad_()  # any numbers will do as values
    counted = (batch.weight > 0)[batch.row_of_token] & batch.response_mask
    loss, _ = critic(
        values=leaf,
        old_values=batch.values.double(),
        returns=batch.returns.double(),
        mask=batch.response_mask,
        row_of_token=batch.row_of_token,
        weight=batch.weight.double(),
        token_count=float(counted.sum()),
        row_count=5.0,
    )
    loss.backward()
    values = leaf.detach().tolist()
    assert loss.item() == pytest.approx(expected(values), rel=1e-9)
    for t in range(batch.token_count):
        up, down = ([*values[:t], values[t] + step, *values[t + 1 :]] for step in (1e-6, -1e-6))
        assert leaf.grad[t].item() == pytest.approx((expected(up) - expected(down)) / 2e-6, rel=1e-6, abs=1e-6)
        assert bool(counted[t]) or leaf.grad[t].item() == 0.0
