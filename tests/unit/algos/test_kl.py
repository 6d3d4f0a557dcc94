from __future__ import annotations

import math

import pytest
import torch

from laurel.algos.kl import KL_ESTIMATORS, AdaptiveKl, FixedKl, mean_kl, token_kl, token_rewards

LOG2 = math.log(2)


@pytest.mark.parametrize(
    ("name", "policy", "reference", "expected"),
    [
        ("kl", 0.5, 0.25, LOG2),
        ("kl", 0.25, 0.5, -LOG2),
        ("abs", 0.25, 0.5, LOG2),
        ("mse", 0.5, 0.25, LOG2**2 / 2),
        ("low_var_kl", 0.5, 0.25, 0.5 - 1 + LOG2),
        ("low_var_kl", 0.25, 0.5, 2 - 1 - LOG2),
    ],
)
def test_worked_examples(name: str, policy: float, reference: float, expected: float) -> None:
    estimate = KL_ESTIMATORS[name](torch.tensor([policy]).log(), torch.tensor([reference]).log())
    assert estimate.item() == pytest.approx(expected, abs=1e-6)


def test_k3_of_a_far_reference_is_ten_not_infinite() -> None:
    estimate = KL_ESTIMATORS["low_var_kl"](torch.tensor([-500.0, 0.0]), torch.tensor([0.0, -500.0]))
    assert estimate.tolist() == [10.0, 10.0]


def test_k1_and_k3_are_unbiased_and_k2_is_close() -> None:
    """In expectation over the policy, both equal the true KL of two small categorical distributions."""
    policy = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    reference = torch.tensor([0.4, 0.4, 0.2], dtype=torch.float64)
    true = (policy * (policy / reference).log()).sum().item()
    means = {name: (policy * f(policy.log(), reference.log())).sum().item() for name, f in KL_ESTIMATORS.items()}
    assert means["kl"] == pytest.approx(true, abs=1e-12)
    assert means["low_var_kl"] == pytest.approx(true, abs=1e-12)
    assert means["mse"] == pytest.approx(true, rel=0.1)
    assert means["abs"] > true


@pytest.mark.parametrize("name", list(KL_ESTIMATORS))
def test_gradient_matches_finite_differences(name: str) -> None:
    log_probs = torch.tensor([-0.3, -2.0, -1.0, -0.7], dtype=torch.float64, requires_grad=True)
    ref = torch.tensor([-1.0, -0.5, -1.2, -3.0], dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda x: KL_ESTIMATORS[name](x, ref), (log_probs,))


def test_score_lies_on_the_last_sampled_token_and_kl_on_every_one(make_batch) -> None:
    nan = float("nan")
    batch = make_batch(
        [(1, [True, True, False]), (2, [True])],
        score=[1.0, 2.0],
        old_log_probs=[nan, -0.5, -0.8, nan, nan, nan, -1.0],
        ref_log_probs=[nan, -1.0, -1.0, nan, nan, nan, -2.0],
    )
    assert token_rewards(batch, 0.1).tolist() == pytest.approx([0, -0.05, 0.98, 0, 0, 0, 1.9])
    assert token_rewards(batch, 0.0).tolist() == [0, 0, 1, 0, 0, 0, 2]
    # rows: (0.5 + 0.2) / 2 and 1.0
    assert mean_kl(batch) == pytest.approx(0.675)


def test_without_kl_no_log_probs_are_needed_and_with_kl_the_missing_one_is_named(make_batch) -> None:
    batch = make_batch([(1, [True])], score=[3.0])
    assert token_rewards(batch, 0.0).tolist() == [0, 3]
    with pytest.raises(KeyError, match="old_log_probs"):
        token_rewards(batch, 0.1)


def test_row_without_sampled_token_and_row_of_weight_zero_carry_no_reward(make_batch) -> None:
    batch = make_batch([(2, [False]), (1, [True]), (1, [True])], score=[5.0, 6.0, float("nan")], weight=[1.0, 1.0, 0.0])
    assert token_rewards(batch, 0.0).tolist() == [0, 0, 0, 0, 6, 0, 0]


@pytest.mark.parametrize("score", [float("nan"), float("inf")])
def test_broken_score_names_the_row(make_batch, score: float) -> None:
    with pytest.raises(ValueError, match=r"score of rows \[1\]"):
        token_rewards(make_batch([(1, [True])] * 2, score=[0.0, score]), 0.0)


def test_token_kl_is_zero_where_nothing_was_sampled(random_batch) -> None:
    batch = random_batch()
    kl = token_kl(batch, "mse")
    assert bool((kl[~batch.response_mask] == 0).all())
    assert bool((kl[batch.response_mask] > 0).all())


def test_fixed_controller_keeps_the_weight() -> None:
    assert FixedKl().update(0.1, current_kl=9.0, n_trajectories=100) == 0.1


@pytest.mark.parametrize(
    ("current_kl", "expected"),
    [(0.2, 0.1 * 1.02), (9.0, 0.1 * 1.02), (0.1, 0.1), (0.09, 0.1 * 0.99), (0.0, 0.1 * 0.98)],
)
def test_adaptive_controller_worked_examples(current_kl: float, expected: float) -> None:
    control = AdaptiveKl(target_kl=0.1, horizon=10000)
    assert control.update(0.1, current_kl=current_kl, n_trajectories=1000) == pytest.approx(expected)
