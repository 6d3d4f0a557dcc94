import pytest
import torch

from laurel.batch.pack import balance, gather_tokens, mini_batches, pack, rank_shares, split_for_ranks
from laurel.batch.token_batch import TokenBatch


def batch_of(lengths: list[int], group_size: int = 1) -> TokenBatch:
    """Rows of the given lengths whose first token is the prompt; token ids are 100 * row + position."""
    rows = range(len(lengths))
    return TokenBatch(
        {
            "input_ids": torch.tensor([100 * row + t for row in rows for t in range(lengths[row])]),
            "response_mask": torch.tensor([t > 0 for row in rows for t in range(lengths[row])]),
        },
        {
            "index": torch.arange(len(lengths)),
            "group": torch.arange(len(lengths)) // group_size,
            "weight": torch.ones(len(lengths)),
        },
        torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()]),
    )


def test_balance_gives_the_longest_to_the_least_loaded():
    assert balance([4, 1, 3, 2], 2) == [[0, 1], [2, 3]]
    assert balance([5], 3) == [[0], [], []]


def test_pack_keeps_to_the_budget_and_drops_nothing():
    lengths = [3, 5, 2, 9, 4]
    bins = pack(lengths, max_tokens=7)
    assert sorted(row for rows in bins for row in rows) == [0, 1, 2, 3, 4]
    assert [3] in bins, "a row above the budget stands alone"
    assert all(sum(lengths[row] for row in rows) <= 7 for rows in bins if rows != [3])


def test_pack_by_rows():
    assert [len(rows) for rows in pack([1] * 7, max_tokens=None, max_rows=3)] == [3, 3, 1]


def test_every_rank_gets_as_many_micro_batches_and_all_rows_arrive_once():
    batch = batch_of([4, 9, 3, 7, 2])
    shares = split_for_ranks(batch, ranks=3, max_tokens=9)
    assert len({len(share) for share in shares}) == 1
    seen = [i for share in shares for micro in share for i in micro.index[micro.weight > 0].tolist()]
    assert sorted(seen) == [0, 1, 2, 3, 4]


def test_more_ranks_than_rows_are_filled_with_weight_zero():
    shares = split_for_ranks(batch_of([4]), ranks=3, max_tokens=None)
    assert [[micro.weight.tolist() for micro in share] for share in shares] == [[[1.0]], [[0.0]], [[0.0]]]


def test_mini_batches_take_whole_groups_and_the_last_is_smaller():
    batch = batch_of([2] * 10, group_size=2)
    assert [mini.index.tolist() for mini in mini_batches(batch, 2)] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert mini_batches(batch, 2, order=[4, 0, 1, 2, 3])[0].index.tolist() == [8, 9, 0, 1]


def test_counts_are_those_of_the_whole_mini_batch():
    shares = rank_shares(batch_of([4, 9, 3]), ranks=2, max_tokens=9)
    assert [(share.token_count, share.row_count) for share in shares] == [(13.0, 3.0)] * 2


@pytest.mark.parametrize("ranks", [1, 2, 5])
def test_gather_returns_results_to_their_tokens(ranks):
    batch = batch_of([4, 9, 3, 7, 2]).select([3, 1, 4, 0, 2])
    shares = split_for_ranks(batch, ranks, max_tokens=10)
    results = [(micro, micro.input_ids * 2.0) for share in shares for micro in share]
    assert gather_tokens(batch, "doubled", results).tolist() == (batch.input_ids * 2.0).tolist()


def test_gather_names_rows_that_are_missing():
    batch = batch_of([2, 3])
    with pytest.raises(ValueError, match=r"log_probs is missing or NaN for rows \[1\] of 2"):
        gather_tokens(batch, "log_probs", [(batch.select([0]), torch.zeros(2))])


def test_trajectories_of_a_prompt_stay_in_one_micro_batch_if_they_fit():
    batch = batch_of([3, 4, 5, 3, 4, 5, 3, 4], group_size=2)
    (share,) = split_for_ranks(batch, ranks=1, max_tokens=16)
    assert sorted(sorted(micro.group.tolist()) for micro in share) == [[0, 0, 2, 2], [1, 1, 3, 3]]


def test_a_group_above_the_budget_is_cut():
    batch = batch_of([6, 6, 6], group_size=3)
    (share,) = split_for_ranks(batch, ranks=1, max_tokens=12)
    assert sorted(len(micro.index) for micro in share) == [1, 2]


def test_few_groups_over_many_ranks_are_shared_out_by_rows():
    shares = split_for_ranks(batch_of([5, 5, 5, 5], group_size=4), ranks=2, max_tokens=None)
    assert [micro.row_count for share in shares for micro in share] == [2, 2]


def test_micro_batches_of_a_number_of_rows():
    (share,) = split_for_ranks(batch_of([2] * 6, group_size=3), ranks=1, max_tokens=None, max_rows=3)
    assert [micro.group.tolist() for micro in share] == [[0, 0, 0], [1, 1, 1]]
