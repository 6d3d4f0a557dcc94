from __future__ import annotations

import numpy as np
import pytest
import torch

from laurel.algos.aggregate import AGGREGATIONS, Tokens, aggregate


def tokens(mask: list[bool], rows: list[int], weight: list[float], scale: float = 3.0) -> Tokens:
    mask_, rows_, weight_ = torch.tensor(mask), torch.tensor(rows), torch.tensor(weight, dtype=torch.float64)
    count = float((mask_ * weight_[rows_]).sum())
    return Tokens(mask_, rows_, weight_, token_count=count, row_count=float(weight_.sum()), scale=scale)


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("token-mean", 3.0),
        ("token-sum", 9.0),
        ("seq-mean-token-sum", 4.5),
        ("seq-mean-token-mean", 3.75),
        ("seq-mean-token-sum-norm", 1.5),
    ],
)
def test_worked_examples(mode: str, expected: float) -> None:
    """Rows (prompt, 1, 2), (6, environment) and a row of weight 0; what does not count is NaN."""
    nan = float("nan")
    losses = torch.tensor([nan, 1.0, 2.0, 6.0, nan, nan], dtype=torch.float64)
    given = tokens([False, True, True, True, False, True], [0, 0, 0, 1, 1, 2], [1.0, 1.0, 0.0])
    assert aggregate(losses, given, mode).item() == pytest.approx(expected)


def reference(losses: np.ndarray, mask: np.ndarray, rows: np.ndarray, weight: np.ndarray, mode: str) -> float:
    kept = [losses[mask & (rows == row)] for row in range(len(weight)) if weight[row] > 0]
    sums, lengths = np.array([k.sum() for k in kept]), np.array([len(k) for k in kept])
    return {
        "token-mean": sums.sum() / lengths.sum(),
        "token-sum": sums.sum(),
        "seq-mean-token-sum": sums.mean(),
        "seq-mean-token-mean": (sums / lengths).mean(),
        "seq-mean-token-sum-norm": sums.mean() / 3.0,
    }[mode]


@pytest.mark.parametrize("mode", list(AGGREGATIONS))
def test_equals_reference_and_gradient_is_right(random_batch, mode: str) -> None:
    batch = random_batch(2)
    weight = [1.0] * 9 + [0.0] * 3
    given = tokens(batch.response_mask.tolist(), batch.row_of_token.tolist(), weight)
    losses = batch.advantages.double().requires_grad_()
    expected = reference(
        losses.detach().numpy(), batch.response_mask.numpy(), batch.row_of_token.numpy(), np.array(weight), mode
    )
    assert aggregate(losses, given, mode).item() == pytest.approx(expected, abs=1e-12)
    assert torch.autograd.gradcheck(lambda x: aggregate(x, given, mode), (losses,))


@pytest.mark.parametrize("mode", list(AGGREGATIONS))
def test_an_update_without_tokens_has_zero_loss_and_gradient(mode: str) -> None:
    losses = torch.ones(2, dtype=torch.float64, requires_grad=True)
    loss = aggregate(losses, tokens([False, False], [0, 1], [0.0, 0.0]), mode)
    loss.backward()
    assert loss.item() == 0.0
    assert losses.grad is not None
    assert losses.grad.tolist() == [0.0, 0.0]


def test_mean_is_the_token_mean_whatever_the_mode() -> None:
    given = tokens([True, True, True], [0, 0, 1], [1.0, 1.0])
    assert given.mean(torch.tensor([1.0, 2.0, 6.0])).item() == pytest.approx(3.0)
