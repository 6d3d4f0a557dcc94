"""A prompt that several rows begin with is computed once, and nothing that comes out changes."""

import pytest
import torch
from unit.learner.learner_cases import make_config

from laurel.batch.pack import rank_shares
from laurel.batch.token_batch import TokenBatch
from laurel.learner.forward import lay_out, shared_prompts
from laurel.learner.learner import PolicyLearner, ValueLearner


def batch_of(rows: list[tuple[list[int], list[int]]], groups: list[int]) -> TokenBatch:
    """Rows of (prompt, response) token ids."""
    noise = torch.Generator().manual_seed(1)
    ids = [prompt + response for prompt, response in rows]
    flat = torch.tensor([token for row in ids for token in row])
    return TokenBatch(
        {
            "input_ids": flat,
            "position_ids": torch.cat([torch.arange(len(row)) for row in ids]),
            "response_mask": torch.tensor([i >= len(p) for p, r in rows for i in range(len(p) + len(r))]),
            "advantages": torch.randn(len(flat), generator=noise),
            "values": torch.randn(len(flat), generator=noise),
            "returns": torch.randn(len(flat), generator=noise),
            "ref_log_probs": torch.randn(len(flat), generator=noise) - 4.0,
        },
        {
            "index": torch.arange(len(rows)),
            "group": torch.tensor(groups),
            "weight": torch.tensor([1.0] * (len(rows) - 1) + [0.0]),
        },
        torch.tensor([0, *[len(row) for row in ids]]).cumsum(0),
    )


def two_groups() -> TokenBatch:
    return batch_of(
        [
            ([5, 6, 7], [8]),
            ([9, 10], [11, 12, 13]),
            ([5, 6, 7], [14, 15]),
            ([9, 10], [16]),
            ([5, 6, 7], [17, 18, 19]),
            ([5, 6, 7], [8]),
        ],
        groups=[0, 1, 0, 1, 0, 0],
    )


def test_the_docstrings_example():
    shared = shared_prompts(batch_of([([5, 6], [7]), ([5, 6], [8, 9])], groups=[0, 0]))
    assert shared is not None
    assert shared.kept.tolist() == [0, 1, 2, 5, 6]
    assert shared.source.tolist() == [0, 1, 2, 0, 1, 3, 4]


def test_rows_of_other_groups_and_other_prompts_share_nothing():
    assert shared_prompts(batch_of([([5, 6], [7]), ([5, 6], [8])], groups=[0, 1])) is None
    assert shared_prompts(batch_of([([5, 6], [7]), ([5, 4], [8])], groups=[0, 0])) is None, "same length, other tokens"
    assert shared_prompts(batch_of([([5, 6], [7]), ([5], [6, 8])], groups=[0, 0])) is None, "a sampled 6 is no prompt"


@pytest.mark.parametrize("make", [PolicyLearner, ValueLearner])
def test_gradients_equal_those_of_rows_that_share_nothing(model, make):
    config = make_config(model)
    batch = two_groups()
    assert shared_prompts(batch) is not None

    def gradients(rows: TokenBatch) -> list[torch.Tensor]:
        torch.manual_seed(0)
        learner = make("actor", config) if make is PolicyLearner else make(config)
        if make is ValueLearner:
            torch.nn.init.normal_(learner.module.value_head.weight)
        (mini,) = rank_shares(rows, 1, 1000)
        (micro,) = mini.micro_batches
        loss, _ = learner._loss(lay_out(micro, learner.device), mini)
        loss.backward()
        return [p.grad for p in learner.module.parameters() if p.grad is not None]

    alone = batch.with_(group=torch.arange(batch.row_count))
    together, apart = gradients(batch), gradients(alone)
    assert len(together) == len(apart) > 10
    for one, other in zip(together, apart, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)
    assert max(float(g.abs().max()) for g in apart) > 1e-3, "gradients that vanish would prove nothing"


def test_log_probs_equal_those_of_single_rows(model):
    actor = PolicyLearner("actor", make_config(model))
    batch = two_groups()
    together = actor.log_probs([batch])[0]
    apart = torch.cat(actor.log_probs([batch.select([row]) for row in range(batch.row_count)]))
    torch.testing.assert_close(together, apart, atol=1e-5, rtol=0)
    assert together[batch.response_mask].lt(-1).all()
