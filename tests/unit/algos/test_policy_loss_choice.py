"""Which tokens clip_cov and kl_cov single out: by hand, and the same whatever the order of rows."""

from __future__ import annotations

import torch

from laurel.algos.policy_loss.covariance import (
    ChooseBand,
    ChooseNone,
    ChooseTop,
    choose_band,
    choose_top,
    covariances,
)

ALL = torch.ones(4, dtype=torch.bool)


def test_covariances() -> None:
    nan = float("nan")
    active = torch.tensor([True, False, True])
    found = covariances(
        log_probs=torch.tensor([-1.0, nan, -3.0]), advantages=torch.tensor([1.0, nan, -1.0]), active=active
    )
    assert found.tolist() == [1.0, 0.0, 1.0]
    against = covariances(
        log_probs=torch.tensor([-1.0, nan, -3.0]), advantages=torch.tensor([-1.0, nan, 1.0]), active=active
    )
    assert against.tolist() == [-1.0, 0.0, -1.0]
    assert covariances(log_probs=torch.ones(2), advantages=torch.ones(2), active=~ALL[:2]).tolist() == [0.0, 0.0]


def test_choose_top() -> None:
    covariance = torch.tensor([3.0, 1.0, 2.0, 9.0])
    active = torch.tensor([True, True, True, False])
    assert choose_top(covariance, active, 0.5).tolist() == [True, False, False, False]
    assert choose_top(covariance, active, 0.7).tolist() == [True, False, True, False]
    assert choose_top(covariance, active, 1e-9).tolist() == [True, False, False, False]  # at least one
    assert choose_top(covariance, ~ALL, 0.5).tolist() == [False] * 4


def band(covariance, ratio: float, seed: int = 0, active=ALL, low: float = 1.0, high: float = 5.0) -> list[bool]:
    generator = torch.Generator().manual_seed(seed)
    return choose_band(torch.tensor(covariance), active, ratio, low, high, generator).tolist()


def test_choose_band() -> None:
    assert band([3.0, 1.0, 2.0, 5.0], 0.25, low=2.5) == [True, False, False, False]  # ends are outside
    assert band([3.0, 1.0, 2.0, 5.0], 1.0) == [True, False, True, False]
    assert band([0.0, 0.0, 0.0, 0.0], 1.0) == [False] * 4
    assert band([3.0, 3.0, 3.0, 3.0], 1.0, active=torch.tensor([True, False, True, True])) == [True, False, True, True]
    draws = {tuple(band([3.0, 3.0, 3.0, 3.0], 0.5, seed)) for seed in range(40)}
    assert all(sum(draw) == 2 for draw in draws)
    assert len(draws) == 6


def test_kl_cov_s_choice_is_the_same_in_any_order_of_rows(random_batch) -> None:
    batch = random_batch(3).with_(weight=torch.tensor([1.0] * 11 + [0.0]))
    choose = ChooseTop(0.1)
    chosen = choose(batch, step=1)
    sampled = int((batch.response_mask & (batch.weight > 0)[batch.row_of_token]).sum())
    assert int(chosen.sum()) == int(0.1 * sampled)
    assert not bool((chosen & ~batch.response_mask).any())
    order = torch.randperm(12, generator=torch.Generator().manual_seed(1))
    mixed = batch.with_(chosen=chosen).select(order)
    assert torch.equal(choose(mixed, step=1), mixed.chosen)


def test_without_old_log_probs_kl_cov_holds_nothing(random_batch) -> None:
    """The ratio is then exactly 1."""
    batch = random_batch(0)
    tokens = {name: column for name, column in batch.tokens.items() if name != "old_log_probs"}
    assert ChooseTop(0.1)(type(batch)(tokens, batch.rows, batch.cu_seqlens), step=1) is None


def test_clip_cov_draws_by_seed_and_step_alone(random_batch) -> None:
    batch = random_batch(3)
    choose = ChooseBand(0.05, low=0.0, high=9.0, seed=1)
    first = choose(batch, step=1)
    assert int(first.sum()) == int(0.05 * int(batch.response_mask.sum()))
    assert torch.equal(choose(batch, step=1), first)
    assert not torch.equal(choose(batch, step=2), first)
    assert not torch.equal(ChooseBand(0.05, 0.0, 9.0, seed=2)(batch, step=1), first)
    assert not bool((first & ~batch.response_mask).any())


def test_other_losses_choose_nothing(random_batch) -> None:
    assert ChooseNone()(random_batch(0), step=1) is None
