from __future__ import annotations

import pytest
import torch

from laurel.algos.masked import active_tokens, masked_mean, masked_sum, masked_whiten, row_sums

NAN, INF = float("nan"), float("inf")


def test_sums_and_means_never_read_what_the_mask_leaves_out() -> None:
    values, mask = torch.tensor([1.0, NAN, 4.0, INF]), torch.tensor([True, False, True, False])
    assert masked_sum(values, mask) == 5.0
    assert masked_mean(values, mask) == 2.5


def test_mean_over_nothing_is_an_error() -> None:
    with pytest.raises(ValueError, match="over no tokens"):
        masked_mean(torch.tensor([1.0]), torch.tensor([False]))


def test_whiten_worked_example() -> None:
    values, mask = torch.tensor([1.0, NAN, 2.0, 3.0]), torch.tensor([True, False, True, True])
    assert masked_whiten(values, mask).tolist() == pytest.approx([-1.0, 0.0, 0.0, 1.0], abs=1e-6)


@pytest.mark.parametrize("values", [[7.0, NAN], [NAN, NAN]])
def test_whiten_of_fewer_than_two_values_is_zero(values: list[float]) -> None:
    tensor = torch.tensor(values)
    assert masked_whiten(tensor, ~tensor.isnan()).tolist() == [0.0, 0.0]


def test_whiten_of_equal_values_is_zero() -> None:
    assert masked_whiten(torch.full((3,), 5.0), torch.ones(3, dtype=torch.bool)).tolist() == [0.0, 0.0, 0.0]


def test_row_sums() -> None:
    values, mask = torch.tensor([1.0, 2.0, NAN, 4.0]), torch.tensor([True, True, False, True])
    assert row_sums(values, mask, torch.tensor([0, 0, 1, 2]), 4).tolist() == [3.0, 0.0, 4.0, 0.0]


def test_rows_of_weight_zero_have_no_active_token() -> None:
    mask, row = torch.tensor([False, True, True, True]), torch.tensor([0, 0, 1, 1])
    assert active_tokens(mask, row, torch.tensor([1.0, 0.0])).tolist() == [False, True, False, False]
