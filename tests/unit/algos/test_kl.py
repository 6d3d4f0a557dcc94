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
        ("kl+", 0.5, 0.25, LOG2),
        ("abs+", 0.25, 0.5, LOG2),
        ("low_var_kl+", 0.5, 0.25, 0.5 - 1 + LOG2),
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


PLAIN = ["kl", "abs", "mse", "low_var_kl"]
STRAIGHT = ["kl+", "abs+", "low_var_kl+"]
OF_POLICY = torch.tensor([-0.3, -2.0, -1.0, -0.7, -9.0, -40.0], dtype=torch.float64)
OF_REFERENCE = torch.tensor([-1.0, -0.5, -1.2, -3.0, -1.0, -0.1], dtype=torch.float64)


def slopes(name: str, log_probs: torch.Tensor, ref_log_probs: torch.Tensor) -> torch.Tensor:
    leaf = log_probs.clone().requires_grad_()
    (slope,) = torch.autograd.grad(KL_ESTIMATORS[name](leaf, ref_log_probs).sum(), leaf)
    return slope


def finite_differences(name: str, log_probs: torch.Tensor, ref_log_probs: torch.Tensor) -> torch.Tensor:
    up, down = (KL_ESTIMATORS[name](log_probs + step, ref_log_probs) for step in (1e-6, -1e-6))
    return (up - down) / 2e-6


def test_every_estimator_is_tested_for_its_gradient() -> None:
    assert [*PLAIN, *STRAIGHT] == list(KL_ESTIMATORS)


@pytest.mark.parametrize("name", PLAIN)
def test_gradient_matches_finite_differences(name: str) -> None:
    numeric = finite_differences(name, OF_POLICY, OF_REFERENCE)
    torch.testing.assert_close(slopes(name, OF_POLICY, OF_REFERENCE), numeric, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", STRAIGHT)
def test_straight_through_has_its_own_value_and_the_gradient_of_k2(name: str) -> None:
    value = KL_ESTIMATORS[name](OF_POLICY, OF_REFERENCE)
    assert torch.equal(value, KL_ESTIMATORS[name.removesuffix("+")](OF_POLICY, OF_REFERENCE))
    numeric = finite_differences("mse", OF_POLICY, OF_REFERENCE)
    torch.testing.assert_close(slopes(name, OF_POLICY, OF_REFERENCE), numeric, rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(slopes(name, OF_POLICY, OF_REFERENCE), OF_POLICY - OF_REFERENCE)


def test_which_gradients_are_those_of_the_divergence() -> None:
    """Means over a small policy of each estimator's gradient, in the logits, against the gradient of the whole KL."""
    logits = torch.tensor([0.3, -1.0, 0.7], dtype=torch.float64, requires_grad=True)
    reference = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64)

    def mean_gradient(name: str) -> torch.Tensor:
        log_probs = logits.log_softmax(0)
        mean = (log_probs.exp().detach() * KL_ESTIMATORS[name](log_probs, reference.log())).sum()
        return torch.autograd.grad(mean, logits)[0]

    log_policy = logits.log_softmax(0)
    forward = (log_policy.exp() * (log_policy - reference.log())).sum()
    backward = (reference * (reference.log() - log_policy)).sum()
    of_forward, of_backward = (torch.autograd.grad(kl, logits, retain_graph=True)[0] for kl in (forward, backward))
    for name in ("mse", *STRAIGHT):
        torch.testing.assert_close(mean_gradient(name), of_forward)
    torch.testing.assert_close(mean_gradient("kl"), torch.zeros(3, dtype=torch.float64), atol=1e-12, rtol=0)
    torch.testing.assert_close(mean_gradient("low_var_kl"), of_backward)


def test_a_step_against_the_gradient_brings_the_policy_nearer() -> None:
    reference = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64)
    for name in ("mse", "low_var_kl", *STRAIGHT):
        logits = torch.tensor([0.3, -1.0, 0.7], dtype=torch.float64, requires_grad=True)
        distances = []
        for _ in range(3):
            log_probs = logits.log_softmax(0)
            distances.append((log_probs.exp() * (log_probs - reference.log())).sum().item())
            loss = (log_probs.exp().detach() * KL_ESTIMATORS[name](log_probs, reference.log())).sum()
            (slope,) = torch.autograd.grad(loss, logits)
            logits = (logits - 0.1 * slope).detach().requires_grad_()
        assert distances == sorted(distances, reverse=True), name


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
