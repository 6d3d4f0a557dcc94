"""Sampled tokens of packed rows: runs, sums, spreading, scans, whitening; and statistics of groups."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from laurel.algos.advantages.groups import Groups
from laurel.algos.advantages.rows import SampledTokens, discounted_suffix_sums, whiten

NAN, INF = float("nan"), float("inf")


def tokens_of(mask: str, cu_seqlens: list[int], weight: list[float]) -> SampledTokens:
    return SampledTokens.of(
        torch.tensor([c == "T" for c in mask], dtype=torch.bool), torch.tensor(cu_seqlens), torch.tensor(weight)
    )


def test_runs_end_where_the_mask_or_the_row_changes() -> None:
    tokens = tokens_of("FTTFFT", [0, 4, 6], [1.0, 0.0])
    assert tokens.starts.tolist() == [0, 1, 3, 4, 5]
    assert tokens.sampled.tolist() == [False, True, False, False, False]
    assert tokens.counts.tolist() == [2, 0]


def test_neighbouring_rows_without_a_prompt_are_two_runs() -> None:
    tokens = tokens_of("TTTT", [0, 1, 4], [1.0, 1.0])
    assert tokens.starts.tolist() == [0, 1]
    assert tokens.counts.tolist() == [1, 3]
    assert tokens.firsts.tolist() == [0, 1]


def test_empty_rows_and_an_empty_batch() -> None:
    tokens = tokens_of("FT", [0, 0, 2, 2], [1.0, 1.0, 1.0])
    assert tokens.counts.tolist() == [0, 1, 0]
    assert tokens.row_sums(torch.tensor([5.0, 2.0])).tolist() == [0.0, 2.0, 0.0]
    nothing = tokens_of("", [0], [])
    assert nothing.row_sums(torch.zeros(0)).tolist() == []
    assert nothing.spread(np.zeros(0)).tolist() == []


def test_sums_read_only_what_counts_and_spread_fills_only_that() -> None:
    tokens = tokens_of("FTTFTFTT", [0, 5, 8], [1.0, 0.0])
    values = torch.tensor([NAN, 1.0, 2.0, INF, 4.0, -INF, NAN, 7.0])
    assert tokens.row_sums(values).tolist() == [7.0, 0.0]
    assert tokens.spread(np.array([3.0, NAN])).tolist() == [0, 3, 3, 0, 3, 0, 0, 0]
    packed = tokens.pack(values)
    assert packed.tolist() == [1.0, 2.0, 4.0]
    assert tokens.unpack(packed).tolist() == [0, 1, 2, 0, 4, 0, 0, 0]


def test_sums_of_float32_run_in_float64() -> None:
    tokens = tokens_of("T" * 3, [0, 3], [1.0])
    assert tokens.row_sums(torch.tensor([1e8, 1.0, -1e8])).tolist() == [1.0]


def test_suffix_sums_worked_example() -> None:
    sums = discounted_suffix_sums(np.array([1.0, 2.0, 3.0, 10.0, 1.0]), np.array([3, 2]), 0.5)
    assert sums.tolist() == [2.75, 3.5, 3.0, 10.5, 1.0]


@pytest.mark.parametrize("factor", [0.0, 0.3, 0.9405, 1.0])
def test_suffix_sums_of_rows_around_every_block_size(factor: float) -> None:
    """Blocks are of 32: rows of 0, 1, 31, 32, 33, 1023 to 1025 and more tokens, which take up to three levels."""
    counts = np.array([0, 1, 31, 0, 32, 33, 1023, 1024, 1025, 1500, 0])
    values = np.random.default_rng(0).standard_normal(counts.sum())
    expected, end = np.zeros_like(values), 0
    for count in counts:
        end, following = end + count, 0.0
        for t in range(end - 1, end - count - 1, -1):
            following = expected[t] = values[t] + factor * following
    np.testing.assert_allclose(discounted_suffix_sums(values, counts, factor), expected, atol=1e-12)


def test_a_huge_number_in_one_row_leaves_the_others_as_they_are() -> None:
    values = np.array([1.0, 2.0, 1e300, 1e300, 3.0])
    assert discounted_suffix_sums(values, np.array([2, 2, 1]), 1.0)[[0, 1, 4]].tolist() == [3.0, 2.0, 3.0]


def test_whitening_worked_example_and_what_has_no_spread() -> None:
    assert whiten(np.array([1.0, 2.0, 3.0])).tolist() == pytest.approx([-1, 0, 1], abs=1e-7)
    assert whiten(np.array([5.0])).tolist() == [0.0]
    assert whiten(np.array([2.0, 2.0])).tolist() == [0.0, 0.0]
    assert whiten(np.zeros(0)).tolist() == []


def test_whitening_rows_is_whitening_their_tokens() -> None:
    rows, counts = np.array([1.0, -2.0, 0.5, 9.0]), np.array([3, 1, 5, 0])
    expected = whiten(np.repeat(rows, counts))
    np.testing.assert_allclose(np.repeat(whiten(rows, counts), counts), expected, rtol=1e-12)


def groups_of(group: list[int], weight: list[float] | None = None) -> Groups:
    return Groups.of(torch.tensor(group), np.array(weight or [1.0] * len(group)) > 0)


def test_groups_are_found_in_any_order() -> None:
    groups = groups_of([7, 3, 7])
    assert (groups.rows.tolist(), groups.starts.tolist(), groups.sizes.tolist()) == ([1, 0, 2], [0, 1], [1, 2])
    assert groups.member.tolist() == [1, 0, 1]
    assert groups.alone.tolist() == [False, True, False]
    assert groups.sums(np.array([1.0, 5.0, 2.0])).tolist() == [5.0, 3.0]


def test_centring_worked_examples() -> None:
    values = np.array([1.0, 2.0, 6.0])
    assert groups_of([0, 0, 0]).centred(values).tolist() == [-2.0, -1.0, 3.0]
    assert groups_of([0, 0, 0]).centred(values, shares=np.array([2.0, 1.0, 1.0])).tolist() == [-1.5, -0.5, 3.5]
    assert groups_of([0, 1, 0]).centred(values).tolist() == [-2.5, 2.0, 2.5]
    # (0.1 + 0.1 + 0.1) / 3 is not 0.1
    assert groups_of([0] * 3).centred(np.full(3, 0.1)).tolist() == [0.0] * 3


def test_deviation_of_a_group() -> None:
    assert groups_of([0, 0, 0, 1]).stds(np.array([0.0, 1.0, 2.0, 5.0])).tolist() == [1.0, 0.0]


def test_rows_that_do_not_count_are_in_no_group() -> None:
    groups = groups_of([0, 0, 0], [1.0, 0.0, 1.0])
    assert groups.sizes.tolist() == [2]
    assert groups.centred(np.array([1.0, 99.0, 3.0]))[[0, 2]].tolist() == [-1.0, 1.0]
    nothing = groups_of([0, 0], [0.0, 0.0])
    assert nothing.each(nothing.sums(np.ones(2))).tolist() == [0.0, 0.0]
    assert nothing.centred(np.ones(2)).shape == (2,)
