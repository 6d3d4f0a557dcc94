"""Worked examples of each estimator, as their docstrings give them, and what groups of one and equal groups get."""

from __future__ import annotations

import time

import numpy as np
import pytest
import torch
from unit.algos.advantage_cases import estimate

from laurel.batch.token_batch import TokenBatch

NAN = float("nan")
GROUPED = ["grpo", "rloo", "opo", "gpg", "grpo_passk"]


def sampled(batch: TokenBatch, column: torch.Tensor) -> list[float]:
    return column[batch.response_mask].tolist()


def advantages(name: str, batch: TokenBatch, **settings) -> list[float]:
    return sampled(batch, estimate(name, batch, **settings)["advantages"])


@pytest.fixture
def of_totals(make_batch):
    """Rows of one sampled token each, with these rewards, in one group unless ``group`` says otherwise."""

    def make(*totals: float, **columns: list) -> TokenBatch:
        rewards = [number for total in totals for number in (NAN, total)]
        return make_batch([(1, [True])] * len(totals), rewards=rewards, **columns)

    return make


def test_gae_before_and_after_whitening(make_batch) -> None:
    batch = make_batch([(1, [True, True])], rewards=[0.0, 0.0, 1.0], values=[9.0, 0.5, 0.25])
    result = estimate("gae", batch)
    assert result["returns"].tolist() == [0.0, 1.0, 1.0]
    # raw advantages 0.5, 0.75: mean 0.625, deviation 0.17678
    assert result["advantages"].tolist() == pytest.approx([0.0, -0.70711, 0.70711], abs=1e-4)


def test_gae_discounts(make_batch) -> None:
    """gamma 0.5, lam 0.5: delta_1 = 1 - 0.25 = 0.75; delta_0 = 0.5 * 0.25 - 0.5 = -0.375, A_0 = -0.375 + 0.1875."""
    batch = make_batch([(1, [True, True])], rewards=[0.0, 0.0, 1.0], values=[0.0, 0.5, 0.25])
    assert estimate("gae", batch, gamma=0.5, lam=0.5)["returns"].tolist() == pytest.approx([0.0, 0.3125, 1.0])


def test_gae_skips_environment_tokens(make_batch) -> None:
    """A tool answer between two sampled tokens changes nothing, whatever its value says."""
    plain = make_batch([(1, [True, True])], rewards=[0.0, 0.0, 1.0], values=[0.0, 0.5, 0.25])
    tool = make_batch(
        [(1, [True, False, False, True, False])],
        rewards=[0.0, 0.0, NAN, NAN, 1.0, NAN],
        values=[0.0, 0.5, NAN, NAN, 0.25, NAN],
    )
    for name, column in estimate("gae", tool, gamma=0.9, lam=0.8).items():
        assert sampled(tool, column) == sampled(plain, estimate("gae", plain, gamma=0.9, lam=0.8)[name])


def test_gae_expects_nothing_past_a_truncated_end(make_batch) -> None:
    """The last token's advantage is reward - value also where the length limit ended the response."""
    batch = make_batch([(1, [True, True])], rewards=[0.0, 0.0, 0.0], values=[0.0, 0.5, 0.25], truncated=[True])
    assert estimate("gae", batch)["returns"].tolist() == [0.0, 0.0, 0.0]


def test_gae_whitens_to_mean_zero_and_deviation_one(random_batch) -> None:
    batch = random_batch(5)
    kept = estimate("gae", batch, gamma=0.99, lam=0.95)["advantages"][batch.response_mask]
    assert kept.mean().item() == pytest.approx(0.0, abs=1e-6)
    assert kept.std().item() == pytest.approx(1.0, abs=1e-5)


def test_grpo(make_batch) -> None:
    batch = make_batch([(1, [True]), (1, [True, True]), (1, [True])], rewards=[0, 0.0, 0, 0.0, 1.0, 0, 2.0])
    result = estimate("grpo", batch)
    assert result["advantages"].tolist() == pytest.approx([0, -1, 0, 0, 0, 0, 1], abs=1e-5)
    assert torch.equal(result["returns"], result["advantages"])


def test_dr_grpo_is_score_minus_mean(of_totals) -> None:
    assert advantages("grpo", of_totals(1.0, 4.0), norm_adv_by_std_in_grpo=False) == [-1.5, 1.5]


def test_rloo(of_totals) -> None:
    assert advantages("rloo", of_totals(0.0, 1.0, 5.0)) == [-3.0, -1.5, 4.5]


def test_opo_weighs_by_length(make_batch) -> None:
    batch = make_batch([(1, [True]), (2, [True, False, True, True])], rewards=[NAN, 0, NAN, NAN, 1.0, NAN, 0, 3.0])
    assert advantages("opo", batch) == [-3.0, 1.0, 1.0, 1.0]


def test_gpg(of_totals) -> None:
    batch = of_totals(0.0, 2.0, 0.0, 4.0, group=[5, 5, 2, 2])
    assert advantages("gpg", batch) == [-2.0, 2.0, -4.0, 4.0]


def test_gpg_without_any_reward_is_zero(of_totals) -> None:
    assert advantages("gpg", of_totals(0.0, 0.0, 0.0)) == [0.0] * 3


def test_grpo_passk(of_totals) -> None:
    batch = of_totals(1.0, 4.0, 3.0)
    assert advantages("grpo_passk", batch, norm_adv_by_std_in_grpo=False) == [0.0, 1.0, 0.0]
    deviation = np.std([1, 4, 3], ddof=1)
    assert advantages("grpo_passk", batch) == pytest.approx([0.0, 1 / deviation, 0.0], rel=1e-5)


def test_two_best_rows_stand_in_for_each_other_in_passk(of_totals) -> None:
    assert advantages("grpo_passk", of_totals(1.0, 4.0, 4.0)) == [0.0] * 3


def test_reinforce_plus_plus(make_batch) -> None:
    batch = make_batch([(1, [True, True]), (1, [True])], rewards=[0, 0, 1.0, 0, 2.0])
    result = estimate("reinforce_plus_plus", batch, gamma=0.5)
    assert sampled(batch, result["returns"]) == [0.5, 1.0, 2.0]
    assert sampled(batch, result["advantages"]) == pytest.approx([-0.873, -0.218, 1.091], abs=1e-3)


def test_a_return_of_reinforce_plus_plus_runs_on_across_tool_answers(make_batch) -> None:
    batch = make_batch([(1, [True, False, False, True])], rewards=[0, 0, NAN, NAN, 1.0])
    assert sampled(batch, estimate("reinforce_plus_plus", batch, gamma=0.5)["returns"]) == [0.5, 1.0]


def test_reinforce_plus_plus_baseline(of_totals) -> None:
    found = advantages("reinforce_plus_plus_baseline", of_totals(0.0, 4.0))
    assert found == pytest.approx([-0.7071, 0.7071], abs=1e-4)


def test_remax(make_batch) -> None:
    batch = make_batch([(1, [True, True])], rewards=[0, -0.5, 2.0], greedy_scores=[1.0])
    result = estimate("remax", batch)
    assert sampled(batch, result["returns"]) == [1.5, 2.0]
    assert sampled(batch, result["advantages"]) == [0.5, 1.0]


def test_remax_needs_the_greedy_answer(of_totals) -> None:
    with pytest.raises(KeyError, match="no column 'greedy_scores'; it is filled by build_batch"):
        estimate("remax", of_totals(1.0))


def test_gdpo(make_batch) -> None:
    batch = make_batch([(1, [True])] * 3)
    batch = batch.with_(
        **{"score/accuracy": torch.tensor([0.0, 1.0, 2.0]), "score/format": torch.tensor([30.0, 10.0, 20.0])}
    )
    heads = {"gdpo_reward_keys": ["accuracy", "format"], "gdpo_reward_weights": [1.0, 0.5]}
    assert advantages("gdpo", batch, **heads) == pytest.approx([-0.577, -0.577, 1.155], abs=1e-3)


def test_gdpo_tells_apart_what_a_sum_does_not(make_batch) -> None:
    """Two binary heads, of which the first is rarer: GRPO on their sum sees (1, 0) and (0, 1) as equal."""
    batch = make_batch([(1, [True])] * 4, rewards=[0.0, 1.0] * 3 + [0.0, 0.0])
    batch = batch.with_(
        **{"score/a": torch.tensor([1.0, 0.0, 0.0, 0.0]), "score/b": torch.tensor([0.0, 1.0, 1.0, 0.0])}
    )
    rare, common, _, nothing = advantages("gdpo", batch, gdpo_reward_keys=["a", "b"])
    assert rare > common > nothing
    assert advantages("grpo", batch)[0] == advantages("grpo", batch)[1]


def test_optimal_token_baseline(make_batch) -> None:
    batch = make_batch(
        [(1, [True]), (1, [True, True])], rewards=[0, 1.0, 0, 0.0, 0.0], logit_grad_squares=[NAN, 0.5, NAN, 1.5, 1.0]
    )
    result = estimate("optimal_token_baseline", batch)
    assert sampled(batch, result["advantages"]) == pytest.approx([0.75, -0.25, 0.0], abs=1e-7)
    assert sampled(batch, result["returns"]) == [1.0, 0.0, 0.0]


def test_optimal_token_baseline_is_the_one_of_least_variance(make_batch) -> None:
    """Of all baselines for one place, B makes the sum of W * (G - B)^2, the variance's proxy, the smallest."""
    generator = torch.Generator().manual_seed(0)
    squares, scores = torch.rand(6, generator=generator), torch.randn(6, generator=generator)
    pad = torch.zeros(6)
    batch = make_batch([(1, [True])] * 6).with_(
        rewards=torch.stack([pad, scores], 1).ravel(), logit_grad_squares=torch.stack([pad, squares], 1).ravel()
    )
    found = torch.tensor(advantages("optimal_token_baseline", batch))
    best = float(scores[0] - found[0])
    torch.testing.assert_close(scores - found, torch.full((6,), best))

    def variance(baseline: float) -> float:
        return float((squares * (scores - baseline) ** 2).sum())

    assert all(variance(best) < variance(best + shift) for shift in (-0.1, -0.001, 0.001, 0.1))


@pytest.mark.parametrize("name", GROUPED)
def test_a_group_of_one_keeps_its_reward(of_totals, name: str) -> None:
    batch = of_totals(3.0, 5.0, -0.5, group=[2, 0, 1])
    assert advantages(name, batch) == [3.0, 5.0, -0.5]


@pytest.mark.parametrize("name", GROUPED)
def test_an_equal_group_gets_exactly_zero(make_batch, name: str) -> None:
    batch = make_batch([(1, [True]), (1, [True, True]), (1, [True])], rewards=[0, 0.1, 0, 0.0, 0.1, 0, 0.1])
    assert advantages(name, batch) == [0.0] * 4


def test_groups_of_one_where_a_number_is_compared_with_the_batch(make_batch, of_totals) -> None:
    """They keep R, which is then whitened over the batch: 3, 5 have mean 4 and deviation 1.414."""
    batch = of_totals(3.0, 5.0, group=[0, 1])
    assert advantages("reinforce_plus_plus_baseline", batch) == pytest.approx([-0.7071, 0.7071], abs=1e-4)
    batch = batch.with_(**{"score/a": torch.tensor([3.0, 5.0])})
    assert advantages("gdpo", batch, gdpo_reward_keys=["a"]) == pytest.approx([-0.7071, 0.7071], abs=1e-4)


def test_equal_groups_where_a_number_is_compared_with_the_batch(of_totals) -> None:
    """Each is 0 before whitening; alone in the batch that stays, beside others the batch's mean is subtracted."""
    batch = of_totals(0.1, 0.1, 0.1)
    assert advantages("reinforce_plus_plus_baseline", batch) == [0.0] * 3
    batch = batch.with_(**{"score/a": torch.tensor([0.1, 0.1, 0.1])})
    assert advantages("gdpo", batch, gdpo_reward_keys=["a"]) == [0.0] * 3
    mixed = of_totals(0.1, 0.1, 0.0, 4.0, group=[0, 0, 1, 1])
    assert advantages("reinforce_plus_plus_baseline", mixed)[:2] == [0.0, 0.0]


def test_optimal_token_baseline_of_a_group_of_one_and_of_equal_rows(make_batch) -> None:
    alone = make_batch([(1, [True, True])], rewards=[0, 0, 3.0], logit_grad_squares=[0, 1.0, 1.0])
    assert advantages("optimal_token_baseline", alone) == [3.0, 3.0]
    equal = make_batch([(1, [True, True])] * 2, rewards=[0, 0, 3.0] * 2, logit_grad_squares=[0, 1.0, 0.5] * 2)
    assert advantages("optimal_token_baseline", equal) == pytest.approx([0.0] * 4, abs=1e-7)


def test_remax_of_an_answer_as_good_as_the_greedy_one_is_zero(of_totals) -> None:
    assert advantages("remax", of_totals(2.0, 2.0, greedy_scores=[2.0, 2.0])) == [0.0, 0.0]


def test_equal_returns_whiten_to_zero(of_totals) -> None:
    assert advantages("reinforce_plus_plus", of_totals(2.0, 2.0)) == [0.0, 0.0]
    assert advantages("reinforce_plus_plus", of_totals(2.0)) == [0.0]


def test_rows_of_weight_zero_are_in_no_group(of_totals) -> None:
    batch = of_totals(1.0, 3.0, NAN, weight=[1.0, 1.0, 0.0])
    assert advantages("grpo", batch, norm_adv_by_std_in_grpo=False) == [-1, 1, 0]


@pytest.mark.parametrize("name", ["gae", "grpo", "optimal_token_baseline"])
def test_a_million_tokens_take_well_under_a_second(name: str) -> None:
    row_count, length = 1024, 1000
    mask = torch.ones(row_count * length, dtype=torch.bool)
    mask[::length] = False
    batch = TokenBatch(
        {
            "response_mask": mask,
            **{column: torch.rand(mask.numel()) for column in ("rewards", "values", "logit_grad_squares")},
        },
        {"weight": torch.ones(row_count), "group": torch.arange(row_count) // 8},
        torch.arange(row_count + 1) * length,
    )
    spent = []
    for _ in range(3):
        start = time.perf_counter()
        estimate(name, batch)
        spent.append(time.perf_counter() - start)
    assert min(spent) < 0.5
