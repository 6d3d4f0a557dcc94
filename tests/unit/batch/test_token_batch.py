import pytest
import torch

from laurel.batch.token_batch import TokenBatch


def two_rows() -> TokenBatch:
    """The example of the class's docstring."""
    return TokenBatch(
        tokens={
            "input_ids": torch.tensor([5, 6, 7, 5, 8, 9]),
            "position_ids": torch.tensor([0, 1, 2, 0, 1, 2]),
            "response_mask": torch.tensor([False, False, True, False, True, True]),
        },
        rows={"index": torch.tensor([0, 1]), "weight": torch.ones(2), "group": torch.tensor([0, 1])},
        cu_seqlens=torch.tensor([0, 3, 6]),
    )


def test_rows_tokens_and_lengths():
    batch = two_rows()
    assert (batch.row_count, batch.token_count) == (2, 6)
    assert batch.lengths.tolist() == [3, 3]
    assert batch.row_of_token.tolist() == [0, 0, 0, 1, 1, 1]


def test_select_reorders_and_repeats_rows():
    batch = TokenBatch(
        {"input_ids": torch.tensor([1, 2, 3, 4, 5, 6])}, {"index": torch.tensor([0, 1, 2])}, torch.tensor([0, 1, 3, 6])
    )
    chosen = batch.select([2, 0, 2])
    assert chosen.input_ids.tolist() == [4, 5, 6, 1, 4, 5, 6]
    assert chosen.cu_seqlens.tolist() == [0, 3, 4, 7]
    assert chosen.index.tolist() == [2, 0, 2]


def test_concatenate_undoes_select():
    batch = two_rows()
    again = TokenBatch.concatenate([batch.select([0]), batch.select([1])])
    assert again.input_ids.tolist() == batch.input_ids.tolist()
    assert again.cu_seqlens.tolist() == batch.cu_seqlens.tolist()
    assert again.index.tolist() == [0, 1]


def test_concatenate_names_differing_columns():
    batch = two_rows()
    with pytest.raises(ValueError, match=r"differ in columns.*advantages"):
        TokenBatch.concatenate([batch, batch.with_(advantages=torch.zeros(6))])


def test_with_puts_a_column_by_its_length_and_skips_none():
    batch = two_rows().with_(values=torch.arange(6.0), score=torch.tensor([1.0, 2.0]), old_log_probs=None)
    assert batch.values.tolist() == [0, 1, 2, 3, 4, 5]
    assert batch.score.tolist() == [1, 2]
    assert not batch.has("old_log_probs")


def test_a_column_of_wrong_length_is_refused_with_both_lengths():
    with pytest.raises(ValueError, match=r"'values' has shape \(5,\); needs \(6,\) for tokens or \(2,\) for rows"):
        two_rows().with_(values=torch.zeros(5))


def test_a_missing_column_says_what_fills_it():
    with pytest.raises(KeyError, match="no column 'advantages'; it is filled by the algorithm's advantages"):
        _ = two_rows().advantages


def test_a_row_column_keeps_its_place_when_every_row_has_one_token():
    batch = TokenBatch({"input_ids": torch.tensor([1, 2])}, {"weight": torch.ones(2)}, torch.tensor([0, 1, 2]))
    assert batch.with_weight(0.0).weight.tolist() == [0, 0]
    assert batch.with_weight(0.0).select([1]).weight.tolist() == [0]
