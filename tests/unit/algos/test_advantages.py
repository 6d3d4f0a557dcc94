from __future__ import annotations

import time
from itertools import pairwise

import numpy as np
import pytest
import torch

from laurel.algos.advantages import discounted_suffix_sums, gae, grpo
from laurel.batch.token_batch import TokenBatch


def run_gae(batch: TokenBatch, gamma: float, lam: float) -> dict[str, torch.Tensor]:
    return gae(
        rewards=batch.rewards,
        values=batch.values,
        mask=batch.response_mask,
        row_of_token=batch.row_of_token,
        weight=batch.weight,
        gamma=gamma,
        lam=lam,
    )


def run_grpo(batch: TokenBatch, norm_by_std: bool = True) -> dict[str, torch.Tensor]:
    return grpo(
        rewards=batch.rewards,
        mask=batch.response_mask,
        row_of_token=batch.row_of_token,
        group=batch.group,
        weight=batch.weight,
        norm_by_std=norm_by_std,
    )


def rows_of(batch: TokenBatch) -> list[np.ndarray]:
    ends = batch.cu_seqlens.tolist()
    return [np.arange(start, end) for start, end in pairwise(ends)]


def reference_gae(batch: TokenBatch, gamma: float, lam: float) -> tuple[np.ndarray, np.ndarray]:
    """Token by token in float64: (whitened advantages, returns)."""
    rewards, values = batch.rewards.double().numpy(), batch.values.double().numpy()
    mask, counted = batch.response_mask.numpy(), batch.weight.numpy() > 0
    advantages, returns = np.zeros_like(rewards), np.zeros_like(rewards)
    used = np.zeros_like(mask)
    for row, tokens in enumerate(rows_of(batch)):
        next_value = next_advantage = 0.0
        for t in tokens[::-1]:
            if not mask[t] or not counted[row]:
                continue
            delta = rewards[t] + gamma * next_value - values[t]
            next_advantage = delta + gamma * lam * next_advantage
            next_value = values[t]
            advantages[t], returns[t], used[t] = next_advantage, next_advantage + values[t], True
    kept = advantages[used]
    advantages[used] = (kept - kept.mean()) / np.sqrt(kept.var(ddof=1) + 1e-8)
    return advantages, returns


def reference_grpo(batch: TokenBatch, norm_by_std: bool) -> np.ndarray:
    mask, counted, group = batch.response_mask.numpy(), batch.weight.numpy() > 0, batch.group.numpy()
    rewards = batch.rewards.double().numpy()
    rows = rows_of(batch)
    totals = np.array([sum(rewards[t] for t in tokens if mask[t]) for tokens in rows])
    advantages = np.zeros_like(rewards)
    for row, tokens in enumerate(rows):
        if not counted[row]:
            continue
        peers = totals[(group == group[row]) & counted]
        value = totals[row]
        if len(peers) > 1:
            value = value - peers.mean()
            if norm_by_std:
                value = value / (peers.std(ddof=1) + 1e-6)
        for t in tokens:
            advantages[t] = value if mask[t] else 0.0
    return advantages


def test_suffix_sums_worked_example() -> None:
    sums = discounted_suffix_sums(torch.tensor([1.0, 2.0, 3.0, 10.0, 1.0]), torch.tensor([2, 1, 0, 1, 0]), 0.5)
    assert sums.tolist() == [2.75, 3.5, 3.0, 10.5, 1.0]


def test_gae_worked_example_before_and_after_whitening(make_batch) -> None:
    batch = make_batch([(1, [True, True])], rewards=[0.0, 0.0, 1.0], values=[9.0, 0.5, 0.25])
    result = run_gae(batch, gamma=1.0, lam=1.0)
    assert result["returns"].tolist() == [0.0, 1.0, 1.0]
    # raw advantages 0.5, 0.75: mean 0.625, deviation 0.17678
    assert result["advantages"].tolist() == pytest.approx([0.0, -0.70711, 0.70711], abs=1e-4)


def test_gae_discounts(make_batch) -> None:
    """gamma 0.5, lam 0.5: delta_1 = 1 - 0.25 = 0.75; delta_0 = 0.5 * 0.25 - 0.5 = -0.375, A_0 = -0.375 + 0.1875."""
    batch = make_batch([(1, [True, True])], rewards=[0.0, 0.0, 1.0], values=[0.0, 0.5, 0.25])
    assert run_gae(batch, gamma=0.5, lam=0.5)["returns"].tolist() == pytest.approx([0.0, 0.3125, 1.0])


def test_gae_skips_environment_tokens(make_batch) -> None:
    """A tool answer between two sampled tokens changes nothing, whatever its value says."""
    plain = make_batch([(1, [True, True])], rewards=[0.0, 0.0, 1.0], values=[0.0, 0.5, 0.25])
    nan = float("nan")
    tool = make_batch(
        [(1, [True, False, False, True, False])],
        rewards=[0.0, 0.0, nan, nan, 1.0, nan],
        values=[0.0, 0.5, nan, nan, 0.25, nan],
    )
    kept = tool.response_mask
    for name, column in run_gae(tool, gamma=0.9, lam=0.8).items():
        assert column[~kept].tolist() == [0.0] * 4
        assert torch.equal(column[kept], run_gae(plain, gamma=0.9, lam=0.8)[name][1:])


@pytest.mark.parametrize(("gamma", "lam"), [(1.0, 1.0), (0.99, 0.95), (1.0, 0.0), (0.0, 1.0)])
def test_gae_equals_reference(random_batch, gamma: float, lam: float) -> None:
    for seed in range(3):
        batch = random_batch(seed).with_(weight=torch.tensor([1.0] * 10 + [0.0] * 2))
        advantages, returns = reference_gae(batch, gamma, lam)
        result = run_gae(batch, gamma, lam)
        np.testing.assert_allclose(result["advantages"].numpy(), advantages, atol=2e-6)
        np.testing.assert_allclose(result["returns"].numpy(), returns, atol=2e-6)


def test_gae_whitens_to_mean_zero_and_deviation_one(random_batch) -> None:
    batch = random_batch(5)
    kept = run_gae(batch, 0.99, 0.95)["advantages"][batch.response_mask]
    assert kept.mean().item() == pytest.approx(0.0, abs=1e-6)
    assert kept.std().item() == pytest.approx(1.0, abs=1e-5)


def test_gae_names_rows_with_nan(make_batch) -> None:
    batch = make_batch([(1, [True])] * 2, rewards=[0.0] * 4, values=[0.0, 0.0, 0.0, float("nan")])
    with pytest.raises(ValueError, match=r"values of rows \[1\]"):
        run_gae(batch, 1.0, 1.0)


def test_grpo_worked_example(make_batch) -> None:
    batch = make_batch([(1, [True]), (1, [True, True]), (1, [True])], rewards=[0, 0.0, 0, 0.0, 1.0, 0, 2.0])
    result = run_grpo(batch)
    assert result["advantages"].tolist() == pytest.approx([0, -1, 0, 0, 0, 0, 1], abs=1e-5)
    assert torch.equal(result["returns"], result["advantages"])


def test_grpo_without_std_is_score_minus_mean(make_batch) -> None:
    batch = make_batch([(1, [True]), (1, [True])], rewards=[0, 1.0, 0, 4.0])
    assert run_grpo(batch, norm_by_std=False)["advantages"].tolist() == [0, -1.5, 0, 1.5]


@pytest.mark.parametrize("norm_by_std", [True, False])
def test_grpo_group_of_one_keeps_its_reward(make_batch, norm_by_std: bool) -> None:
    batch = make_batch([(1, [True]), (1, [True])], rewards=[0, 3.0, 0, 5.0], group=[0, 1])
    assert run_grpo(batch, norm_by_std)["advantages"].tolist() == [0, 3.0, 0, 5.0]


@pytest.mark.parametrize("norm_by_std", [True, False])
def test_grpo_equal_group_gets_exactly_zero(make_batch, norm_by_std: bool) -> None:
    batch = make_batch([(1, [True])] * 3, rewards=[0, 0.1] * 3)
    assert run_grpo(batch, norm_by_std)["advantages"].tolist() == [0.0] * 6


def test_grpo_rows_of_weight_zero_are_in_no_group(make_batch) -> None:
    nan = float("nan")
    batch = make_batch([(1, [True])] * 3, rewards=[0, 1.0, 0, 3.0, nan, nan], weight=[1.0, 1.0, 0.0])
    assert run_grpo(batch, norm_by_std=False)["advantages"].tolist() == [0, -1, 0, 1, 0, 0]


def test_grpo_names_rows_with_nan(make_batch) -> None:
    with pytest.raises(ValueError, match=r"rewards of rows \[0\]"):
        run_grpo(make_batch([(1, [True])] * 2, rewards=[0.0, float("nan"), 0.0, 0.0]))


@pytest.mark.parametrize("norm_by_std", [True, False])
def test_grpo_equals_reference(random_batch, norm_by_std: bool) -> None:
    for seed in range(3):
        batch = random_batch(seed).with_(weight=torch.tensor([1.0] * 10 + [0.0] * 2))
        expected = reference_grpo(batch, norm_by_std)
        np.testing.assert_allclose(run_grpo(batch, norm_by_std)["advantages"].numpy(), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ["gae", "grpo"])
def test_order_of_rows_does_not_matter(random_batch, name: str) -> None:
    batch = random_batch(7)
    order = torch.randperm(batch.row_count, generator=torch.Generator().manual_seed(1))

    def run(some: TokenBatch) -> dict[str, torch.Tensor]:
        return run_gae(some, 0.99, 0.9) if name == "gae" else run_grpo(some)

    before = batch.with_(**run(batch)).select(order)
    after = run(batch.select(order))
    for column in ("advantages", "returns"):
        torch.testing.assert_close(after[column], before.tokens[column], atol=1e-6, rtol=1e-6)


def test_a_million_tokens_take_well_under_a_second() -> None:
    row_count, length = 1024, 1000
    count = row_count * length
    row = torch.arange(row_count).repeat_interleave(length)
    mask = torch.ones(count, dtype=torch.bool)
    rewards, values, weight = torch.randn(count), torch.randn(count), torch.ones(row_count)
    spent = []
    for _ in range(3):
        start = time.perf_counter()
        gae(rewards=rewards, values=values, mask=mask, row_of_token=row, weight=weight, gamma=0.99, lam=0.95)
        spent.append(time.perf_counter() - start)
    assert min(spent) < 1.0
