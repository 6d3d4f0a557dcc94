from __future__ import annotations

import torch

from laurel.algos.masked import active_tokens, row_sums

NAN = float("nan")


def test_row_sums() -> None:
    values, mask = torch.tensor([1.0, 2.0, NAN, 4.0]), torch.tensor([True, True, False, True])
    assert row_sums(values, mask, torch.tensor([0, 0, 1, 2]), 4).tolist() == [3.0, 0.0, 4.0, 0.0]


def test_rows_of_weight_zero_have_no_active_token() -> None:
    mask, row = torch.tensor([False, True, True, True]), torch.tensor([0, 0, 1, 1])
    assert active_tokens(mask, row, torch.tensor([1.0, 0.0])).tolist() == [False, True, False, False]
