"""Every estimator against its slow reference, and what holds for all of them."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest
import torch
from unit.algos.advantage_cases import CASES, IDS, estimate
from unit.algos.reference_advantages import REFERENCES, batch_of

from laurel.batch.token_batch import TokenBatch
from laurel.config.estimators import AdvEstimator

ALL = get_args(AdvEstimator)
every_case = pytest.mark.parametrize(("name", "settings", "reference"), CASES, ids=IDS)


def test_every_estimator_has_a_reference_and_a_case() -> None:
    assert tuple(REFERENCES) == ALL
    assert {name for name, _, _ in CASES} == set(ALL)


@every_case
@pytest.mark.parametrize("seed", range(4))
def test_agrees_with_the_reference(name: str, settings: dict, reference: dict, seed: int) -> None:
    batch = batch_of(seed)
    found = estimate(name, batch, **settings)
    for column, expected in zip(("advantages", "returns"), REFERENCES[name](batch, **reference), strict=True):
        np.testing.assert_allclose(found[column].numpy(), expected, rtol=1e-6, atol=1e-6, err_msg=column)


@every_case
def test_gives_float32_and_zero_where_nothing_was_sampled(name: str, settings: dict, reference: dict) -> None:
    batch = batch_of(7)
    outside = ~(batch.response_mask & (batch.weight > 0)[batch.row_of_token])
    for column in estimate(name, batch, **settings).values():
        assert column.dtype == torch.float32
        assert column.shape == (batch.token_count,)
        assert bool((column[outside] == 0).all())


@every_case
def test_order_of_rows_changes_nothing(name: str, settings: dict, reference: dict) -> None:
    batch = batch_of(8)
    order = torch.randperm(batch.row_count, generator=torch.Generator().manual_seed(1))
    before = batch.with_(**estimate(name, batch, **settings)).select(order)
    after = estimate(name, batch.select(order), **settings)
    for column in ("advantages", "returns"):
        torch.testing.assert_close(after[column], before.tokens[column], atol=1e-6, rtol=1e-6)


@every_case
def test_rows_that_only_pad_change_nothing(name: str, settings: dict, reference: dict) -> None:
    batch = batch_of(9)
    padded = TokenBatch.concatenate([batch, batch.select([0, 3, 8]).with_weight(0.0)])
    before, after = estimate(name, batch, **settings), estimate(name, padded, **settings)
    for column in ("advantages", "returns"):
        assert torch.equal(after[column][: batch.token_count], before[column])
        assert bool((after[column][batch.token_count :] == 0).all())


@every_case
def test_tool_answers_are_as_if_they_were_not_there(name: str, settings: dict, reference: dict) -> None:
    batch = batch_of(10)
    kept = batch.response_mask | (batch.weight == 0)[batch.row_of_token]
    kept[batch.cu_seqlens[:-1]] = True  # a prompt of one token each
    lengths = torch.zeros(batch.row_count, dtype=torch.int64).index_add(0, batch.row_of_token, kept.long())
    cu_seqlens = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    without = TokenBatch({name: column[kept] for name, column in batch.tokens.items()}, batch.rows, cu_seqlens)
    before, after = estimate(name, batch, **settings), estimate(name, without, **settings)
    for column in ("advantages", "returns"):
        assert torch.equal(after[column], before[column][kept])


@pytest.mark.parametrize("name", ALL)
def test_a_batch_in_which_nothing_counts_gets_zeros(name: str) -> None:
    batch = batch_of(11).with_weight(0.0)
    for column in estimate(name, batch).values():
        assert column.tolist() == [0.0] * batch.token_count


READS = {
    "rewards": [name for name in ALL if name != "gdpo"],
    "values": ["gae"],
    "logit_grad_squares": ["optimal_token_baseline"],
}


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize(("column", "name"), [(column, name) for column, names in READS.items() for name in names])
def test_a_broken_number_of_a_token_names_its_row(column: str, name: str, number: float) -> None:
    batch = batch_of(12)
    broken = batch.tokens[column].clone()
    for row in (2, 7):
        broken[(batch.response_mask & (batch.row_of_token == row)).nonzero()[0]] = number
    with pytest.raises(ValueError, match=rf"{column} of rows \[2, 7\] are NaN or infinite"):
        estimate(name, batch.with_(**{column: broken}))


@pytest.mark.parametrize(
    ("column", "name", "said"),
    [("greedy_scores", "remax", "greedy_scores"), ("score/format", "gdpo", "scores 'format'")],
)
def test_a_broken_number_of_a_row_names_it(column: str, name: str, said: str) -> None:
    batch = batch_of(12)
    broken = batch.rows[column].clone()
    broken[8] = float("nan")
    with pytest.raises(ValueError, match=rf"{said} of rows \[8\] are NaN or infinite"):
        estimate(name, batch.with_(**{column: broken}))
