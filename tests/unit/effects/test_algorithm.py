"""Effects of algorithm.*: on advantages, on rewards, and on the weight of the KL penalty."""

import math

import pytest
import torch
from unit.effects.cases import GRPO, PPO, ROLLOUT, batch_of, run_of
from unit.effects.registry import effect

from laurel.algos.table import build_algorithm

KL = "algorithm.use_kl_in_reward=True"
HEADS = ("algorithm.gdpo_reward_keys=[accuracy]",)
GDPO = ("algorithm.adv_estimator=gdpo", f"{ROLLOUT}.n=2")
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


@effect("algorithm.adv_estimator")
def test_every_adv_estimator_is_an_algorithm_of_its_own(key, settings):
    columns = {"rewards": [0.0, 1.0, 0.0, 4.0], "values": [0.5] * 4, "logit_grad_squares": [0.5, 1.0, 1.0, 1.0]}
    batch = two_rows(**columns).with_(greedy_scores=torch.ones(2), **{"score/accuracy": torch.tensor([0.0, 7.0])})
    half, centred = math.sqrt(3 / 4), 1.5  # of four whitened tokens -1, -1, 1, 1; of R 1 and 4
    scaled = centred / (3 / math.sqrt(2))
    expected = {
        "grpo": [-scaled, -scaled, scaled, scaled],
        "rloo": [-3.0, -3.0, 3.0, 3.0],
        "reinforce_plus_plus": [-half, -half, half, half],
        "reinforce_plus_plus_baseline": [-half, -half, half, half],
        "remax": [0.0, 0.0, 3.0, 3.0],
        "opo": [-1.5, -1.5, 1.5, 1.5],
        "gpg": [-1.5, -1.5, 1.5, 1.5],
        "grpo_passk": [0.0, 0.0, 2 * scaled, 2 * scaled],
        "gdpo": [-half, -half, half, half],
        "optimal_token_baseline": [-2.0, -1.7142857, 1.0, 1.2857143],  # baselines 3 and 19 / 7
    }
    for name, numbers in expected.items():
        config = settings(f"{key}={name}", f"{ROLLOUT}.n=2", *HEADS)
        assert sampled(batch, build_algorithm(config).advantages(batch)["advantages"]) == pytest.approx(
            numbers, rel=1e-5
        ), name


@effect("algorithm.adv_estimator")
def test_optimal_token_baseline_asks_the_policy_for_its_logit_gradients(key, settings, ranks):
    batch = batch_of((4, 4), groups=(0, 0))
    for name, asked in (("grpo", []), ("optimal_token_baseline", ["logit_grad_squares"])):
        run, _ = run_of(settings(f"{key}={name}", f"{ROLLOUT}.n=2"), ranks)
        found = run.roles.gradients.logit_grad_squares(batch)
        assert ranks.methods() == asked
        assert (found is None) is (not asked)


@effect("algorithm.gdpo_reward_keys")
def test_gdpo_reward_keys_name_what_is_compared(key, settings):
    batch = two_rows().with_(**{"score/a": torch.tensor([0.0, 1.0]), "score/b": torch.tensor([5.0, 3.0])})
    for names, sign in (("[a]", 1), ("[b]", -1)):
        algorithm = build_algorithm(settings(*GDPO, f"{key}={names}"))
        assert algorithm.reward_heads == (names[1],)
        found = sampled(batch, algorithm.advantages(batch)["advantages"])
        assert found == pytest.approx([-sign * 0.8660254] * 2 + [sign * 0.8660254] * 2, rel=1e-5)


@effect("algorithm.gdpo_reward_weights")
def test_gdpo_reward_weights_weigh_the_heads(key, settings):
    batch = two_rows().with_(**{"score/a": torch.tensor([0.0, 1.0]), "score/b": torch.tensor([5.0, 3.0])})
    keys = "algorithm.gdpo_reward_keys=[a,b]"
    for weights, sign in (("null", 0), ("[2,1]", 1), ("[1,2]", -1)):
        found = build_algorithm(settings(*GDPO, keys, f"{key}={weights}")).advantages(batch)["advantages"]
        # With equal weights both cancel out, up to what is added to their deviations
        assert sampled(batch, found) == pytest.approx([-sign * 0.866] * 2 + [sign * 0.866] * 2, abs=0.01)


@effect("algorithm.gamma")
def test_gamma_discounts_later_rewards(key, settings):
    batch = two_rows(rewards=[0.0, 1.0, 0.0, 1.0], values=[0.0] * 4)
    for gamma, returns in ((1.0, [1.0, 1.0]), (0.5, [0.5, 1.0])):
        found = build_algorithm(settings(*PPO, f"{key}={gamma}")).advantages(batch)["returns"]
        assert sampled(batch, found) == returns * 2


@effect("algorithm.gamma")
def test_gamma_discounts_the_returns_of_reinforce_plus_plus(key, settings):
    batch = two_rows(rewards=[0.0, 1.0, 0.0, 1.0])
    for gamma, returns in ((1.0, [1.0, 1.0]), (0.5, [0.5, 1.0])):
        algorithm = build_algorithm(settings("algorithm.adv_estimator=reinforce_plus_plus", f"{key}={gamma}"))
        assert sampled(batch, algorithm.advantages(batch)["returns"]) == returns * 2


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
        for spelled in (name, f"{name}+"):  # a reward has no gradient, so verl's + changes nothing
            config = settings(KL, f"{CTRL}.kl_coef=1", f"{key}={spelled}")
            assert with_kl(config, old=OLD, ref=REFERENCE) == pytest.approx([-first, 1 - second]), spelled


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
