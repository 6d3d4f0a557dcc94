"""Memory that runs out: the same update, in smaller pieces."""

from __future__ import annotations

import pytest
import torch
from unit.learner.learner_cases import make_config
from unit.learner.test_shared_prompts import two_groups

from laurel.batch.pack import rank_shares
from laurel.batch.token_batch import TokenBatch
from laurel.learner.learner import PolicyLearner
from laurel.learner.memory import SmallerPieces, halves
from laurel.types import LaurelError


def _rows(lengths: list[int]) -> TokenBatch:
    bounds = torch.tensor([0, *lengths]).cumsum(0)
    total = int(bounds[-1])
    return TokenBatch({"input_ids": torch.arange(total)}, {"index": torch.arange(len(lengths))}, bounds)


@pytest.mark.parametrize(
    ("lengths", "expected"), [([3, 3, 3, 3], [[3, 3], [3, 3]]), ([9, 1, 1], [[9], [1, 1]]), ([1, 1, 9], [[1, 1], [9]])]
)
def test_halves_by_tokens(lengths: list[int], expected: list[list[int]]) -> None:
    parts = halves(_rows(lengths))
    assert [part.lengths.tolist() for part in parts] == expected
    assert torch.cat([part.input_ids for part in parts]).tolist() == list(range(sum(lengths)))
    assert halves(_rows([5]))[0].row_count == 1


def _out_of_memory_above(learner: PolicyLearner, tokens: int, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Passes of more than so many tokens fail, going back after some gradients were added up; the sizes tried."""
    tried: list[int] = []
    forward = learner.root.forward

    def limited(laid, **more):  # type: ignore[no-untyped-def]
        tried.append(laid.batch.token_count)
        log_probs, entropy = forward(laid, **more)
        if laid.batch.token_count > tokens:
            log_probs = _FailsGoingBack.apply(log_probs)
        return log_probs, entropy

    monkeypatch.setattr(learner.root, "forward", limited)
    return tried


class _FailsGoingBack(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):  # type: ignore[no-untyped-def]
        if not torch.is_grad_enabled() and not x.requires_grad:
            raise torch.OutOfMemoryError("no memory left")
        return x.clone()

    @staticmethod
    def backward(ctx, grad):  # type: ignore[no-untyped-def]
        raise torch.OutOfMemoryError("no memory left")


def test_an_update_in_pieces_is_the_same_update(model, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    config, batch = make_config(model), two_groups()
    minis = rank_shares(batch, 1, 1000)
    torch.manual_seed(0)
    whole = PolicyLearner("actor", config)
    torch.manual_seed(0)
    cut = PolicyLearner("actor", config)
    tried = _out_of_memory_above(cut, batch.token_count // 2, monkeypatch)
    expected, found = whole.update(minis), cut.update(minis)
    assert tried[0] == batch.token_count
    assert len(tried) >= 3
    assert cut.pieces.cuts >= 1
    assert found["actor/grad_norm"] == pytest.approx(expected["actor/grad_norm"], rel=1e-5)
    for one, other in zip(whole.module.parameters(), cut.module.parameters(), strict=True):
        # AdamW's first step is the sign of the gradient, which is rounding where the gradient is
        assert float((one - other).detach().abs().mean()) < 1e-6
    tried.clear()
    cut.update(minis)
    assert max(tried) <= batch.token_count // 2 + 8, "the next update begins with pieces that fit"


def test_log_probs_in_pieces_are_the_same(model, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    learner, batch = PolicyLearner("actor", make_config(model)), two_groups()
    expected = learner.log_probs([batch])[0]
    _out_of_memory_above(learner, batch.token_count // 2, monkeypatch)
    torch.testing.assert_close(learner.log_probs([batch])[0], expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize(("ranks", "rows"), [(1, [7]), (2, [4, 4])])
def test_where_nothing_can_be_cut_the_error_names_the_setting(ranks: int, rows: list[int]) -> None:
    pieces = SmallerPieces(ranks, "actor_rollout_ref.actor.ppo_max_token_len_per_gpu")

    def work(parts: list[list[TokenBatch]]) -> None:
        raise torch.OutOfMemoryError("no memory left")

    with pytest.raises(LaurelError, match=r"lower actor_rollout_ref\.actor\.ppo_max_token_len_per_gpu"):
        pieces.run([_rows(rows)], work)
