"""Effects of algorithm.*: on advantages, on rewards, and on the weight of the KL penalty."""

import math

import pytest
import torch
from unit.effects.cases import GRPO, PPO, batch_of, run_of
from unit.effects.registry import effect

from laurel.algos.table import build_algorithm

KL = "algorithm.use_kl_in_reward=True"
CTRL = "algorithm.kl_ctrl"


def two_rows(**columns):
    """One group of two rows with two sampled tokens each; ``columns`` give values of the four sampled tokens."""
    batch = batch_of((4, 4), groups=(0, 0))
    spread = {}
    for name, values in columns.items():
        spread[name] = torch.zeros(8)
        spread[name][batch.response_mask] = torch.tensor(values)
    return batch.with_(**spread)


def sampled(batch, column):
    return column[batch.response_mask].tolist()


def with_kl(config, *, old, ref):
    """Token rewards of a row of score 1 whose two tokens have these probabilities, at the coefficient of the start."""
    run, _ = run_of(config)
    batch = batch_of((4,), old_log_probs=torch.tensor(old).log(), ref_log_probs=torch.tensor(ref).log())
    batch = batch.with_(score=torch.ones(1))
    return sampled(batch, run.algo.token_rewards(batch, kl_coef=run.state.kl_coef))


OLD, REFERENCE = [1.0, 1.0, 0.5, 0.25], [1.0, 1.0, 0.25, 0.5]


@effect("algorithm.adv_estimator")
def test_adv_estimator_chooses_the_algorithm(key, settings, ranks):
    batch = two_rows(rewards=[0.0, 0.0, 0.0, 2.0], values=[0.5, 0.5, 0.5, 0.5])
    grpo, gae = settings(*GRPO, "algorithm.norm_adv_by_std_in_grpo=False"), settings(f"{key}=gae")
    assert sampled(batch, build_algorithm(grpo).advantages(batch)["advantages"]) == [-1.0, -1.0, 1.0, 1.0]
    assert sampled(batch, build_algorithm(gae).advantages(batch)["returns"]) == [0.0, 0.0, 2.0, 2.0]
    critics = [type(run_of(config, ranks)[0].roles.critic).__name__ for config in (grpo, gae)]
    assert critics == ["NoCritic", "CriticClient"]


@effect("algorithm.gamma")
def test_gamma_discounts_later_rewards(key, settings):
    batch = two_rows(rewards=[0.0, 1.0, 0.0, 1.0], values=[0.0] * 4)
    for gamma, returns in ((1.0, [1.0, 1.0]), (0.5, [0.5, 1.0])):
        found = build_algorithm(settings(*PPO, f"{key}={gamma}")).advantages(batch)["returns"]
        assert sampled(batch, found) == returns * 2


@effect("algorithm.lam")
def test_lam_weighs_later_surprises(key, settings):
    # Surprises: 0 + 0.5 - 0.5 = 0, then 1 - 0.5 = 0.5; returns = value + surprise + lam * later surprises
    batch = two_rows(rewards=[0.0, 1.0, 0.0, 1.0], values=[0.5] * 4)
    for lam, returns in ((1.0, [1.0, 1.0]), (0.5, [0.75, 1.0]), (0.0, [0.5, 1.0])):
        found = build_algorithm(settings(*PPO, f"{key}={lam}")).advantages(batch)["returns"]
        assert sampled(batch, found) == returns * 2


@effect("algorithm.norm_adv_by_std_in_grpo")
def test_norm_adv_by_std_divides_by_the_group_s_spread(key, settings):
    batch = two_rows(rewards=[0.0, 1.0, 0.0, 4.0])  # mean 2.5, standard deviation 3 / sqrt(2)
    for value, size in ((False, 1.5), (True, 1.5 / (3 / math.sqrt(2)))):
        found = build_algorithm(settings(*GRPO, f"{key}={value}")).advantages(batch)["advantages"]
        assert sampled(batch, found) == pytest.approx([-size, -size, size, size], rel=1e-5)


@effect("algorithm.use_kl_in_reward")
def test_use_kl_in_reward_subtracts_the_divergence(key, settings, ranks):
    for value, cost, role in ((False, 0.0, "NoRef"), (True, 0.1, "RefClient")):
        config = settings(f"{CTRL}.kl_coef=0.1", f"{key}={value}")
        found = with_kl(config, old=OLD, ref=REFERENCE)
        assert found == pytest.approx([-cost * math.log(2), 1 + cost * math.log(2)])
        assert config.needs_reference is value
        assert type(run_of(config, ranks)[0].roles.ref).__name__ == role


@effect("algorithm.kl_penalty")
def test_kl_penalty_chooses_the_estimator(key, settings):
    log2 = math.log(2)
    expected = {
        "kl": [log2, -log2],
        "abs": [log2, log2],
        "mse": [log2**2 / 2, log2**2 / 2],
        "low_var_kl": [0.5 - 1 + log2, 2 - 1 - log2],
    }
    for name, (first, second) in expected.items():
        config = settings(KL, f"{CTRL}.kl_coef=1", f"{key}={name}")
        assert with_kl(config, old=OLD, ref=REFERENCE) == pytest.approx([-first, 1 - second]), name


@effect(f"{CTRL}.kl_coef")
def test_kl_coef_is_the_weight_at_the_start(key, settings):
    for weight in (0.1, 0.5):
        found = with_kl(settings(KL, f"{key}={weight}"), old=OLD, ref=REFERENCE)
        assert found == pytest.approx([-weight * math.log(2), 1 + weight * math.log(2)])


@effect(f"{CTRL}.kl_coef")
def test_giving_kl_coef_turns_the_penalty_on(key, settings):
    for given, on in (((), False), ((f"{key}=0.5",), True)):
        assert settings(*given).needs_reference is on


def next_weight(config):
    """Of weight 1 after a step of two rows whose tokens have KL log 2 = 0.69."""
    batch = two_rows(old_log_probs=[0.0] * 4, ref_log_probs=[-math.log(2)] * 4)
    return build_algorithm(config).next_kl_coef(batch, kl_coef=1.0)


@effect(f"{CTRL}.type")
def test_adaptive_control_moves_the_weight(key, settings):
    horizon = f"{CTRL}.horizon=10"
    assert next_weight(settings(KL, horizon, f"{key}=fixed")) == 1.0
    assert next_weight(settings(KL, horizon, f"{key}=adaptive")) == pytest.approx(1 + 0.2 * 2 / 10)


@effect(f"{CTRL}.horizon")
def test_horizon_slows_the_weight(key, settings):
    for horizon in (10, 100):
        found = next_weight(settings(KL, f"{CTRL}.type=adaptive", f"{key}={horizon}"))
        assert found == pytest.approx(1 + 0.2 * 2 / horizon)


@effect(f"{CTRL}.target_kl")
def test_target_kl_is_where_the_weight_stays(key, settings):
    control = (KL, f"{CTRL}.type=adaptive", f"{CTRL}.horizon=10")
    for target, change in ((0.1, 0.2), (math.log(2), 0.0), (10.0, -0.2)):
        assert next_weight(settings(*control, f"{key}={target}")) == pytest.approx(1 + change * 2 / 10)
