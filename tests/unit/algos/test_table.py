from __future__ import annotations

import pickle
from typing import get_args

import pytest
import torch

from laurel.algos import table
from laurel.algos.kl import AdaptiveKl, FixedKl, KlInReward, NoKlInReward
from laurel.algos.policy_loss.covariance import ChooseBand, ChooseNone, ChooseTop
from laurel.config import tree
from laurel.config.estimators import ESTIMATORS, AdvEstimator
from laurel.config.losses import LOSSES, LossAggMode, LossMode


def config(**sections: dict) -> tree.Config:
    return tree.Config.model_validate(sections)


@pytest.mark.parametrize(
    ("literal", "rows"),
    [
        (LossMode, table.POLICY_LOSSES),
        (LossAggMode, table.AGGREGATIONS),
        (tree.KlLossType, table.KL_ESTIMATORS),
    ],
)
def test_keys_are_what_the_configuration_accepts(literal, rows: dict) -> None:
    assert list(get_args(literal)) == list(rows)


def test_a_reward_takes_the_estimators_without_a_gradient_of_their_own() -> None:
    assert [name for name in table.KL_ESTIMATORS if not name.endswith("+")] == list(get_args(tree.KlEstimator))


def test_gae_binds_gamma_and_lam(make_batch) -> None:
    built = table.build_algorithm(config(algorithm={"adv_estimator": "gae", "gamma": 0.5, "lam": 0.5}))
    batch = make_batch([(1, [True, True])], rewards=[0.0, 0.0, 1.0], values=[0.0, 0.5, 0.25])
    assert built.name == "gae"
    assert built.advantages(batch)["returns"].tolist() == pytest.approx([0.0, 0.3125, 1.0])


@pytest.mark.parametrize(("by_std", "expected"), [(True, 0.70711), (False, 1.5)])
def test_grpo_binds_its_normalisation(make_batch, by_std: bool, expected: float) -> None:
    built = table.build_algorithm(
        config(algorithm={"adv_estimator": "grpo", "norm_adv_by_std_in_grpo": by_std}),
    )
    batch = make_batch([(1, [True]), (1, [True])], rewards=[0, 1.0, 0, 4.0])
    assert built.advantages(batch)["advantages"].tolist() == pytest.approx([0, -expected, 0, expected], abs=1e-4)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"use_kl_in_reward": False}, NoKlInReward()),
        ({"use_kl_in_reward": True}, KlInReward("kl", FixedKl())),
        (
            {
                "use_kl_in_reward": True,
                "kl_penalty": "mse",
                "kl_ctrl": {"type": "adaptive", "target_kl": 0.2, "horizon": 5},
            },
            KlInReward("mse", AdaptiveKl(target_kl=0.2, horizon=5)),
        ),
    ],
)
def test_kl_in_reward_is_decided_when_built(given: dict, expected) -> None:
    assert table.build_algorithm(config(algorithm=given)).kl == expected


def test_algorithm_with_kl_in_reward(make_batch) -> None:
    kl = {"use_kl_in_reward": True, "kl_ctrl": {"type": "adaptive", "target_kl": 0.1, "horizon": 20}}
    built = table.build_algorithm(config(algorithm=kl))
    batch = make_batch(
        [(1, [True])] * 2, score=[1.0, 0.0], old_log_probs=[0.0, -1.0] * 2, ref_log_probs=[0.0, -2.0] * 2
    )
    assert built.token_rewards(batch, kl_coef=0.5).tolist() == [0, 0.5, 0, -0.5]
    assert built.kl_metrics(batch, kl_coef=0.5) == {"critic/kl": 1.0, "critic/kl_coeff": 0.5}
    assert built.next_kl_coef(batch, kl_coef=0.5) == pytest.approx(0.5 * (1 + 0.2 * 2 / 20))


def test_algorithm_without_kl_in_reward_reads_no_log_probs(make_batch) -> None:
    built = table.build_algorithm(config(algorithm={"use_kl_in_reward": False}))
    batch = make_batch([(1, [True])], score=[1.0])
    assert built.token_rewards(batch, kl_coef=0.5).tolist() == [0, 1]
    assert built.kl_metrics(batch, kl_coef=0.5) == {}
    assert built.next_kl_coef(batch, kl_coef=0.5) == 0.5


def test_policy_loss_binds_every_setting() -> None:
    actor = {
        "clip_ratio": 0.1,
        "clip_ratio_high": 0.3,
        "clip_ratio_c": 4.0,
        "loss_agg_mode": "seq-mean-token-sum-norm",
        "loss_scale_factor": 9.0,
        "entropy_coeff": 0.01,
        "use_kl_loss": True,
        "kl_loss_coef": 0.2,
        "kl_loss_type": "abs",
    }
    loss = table.build_policy_loss(config(actor_rollout_ref={"actor": actor}))
    assert loss.token_loss.keywords == {"clip_low": 0.1, "clip_high": 0.3, "clip_c": 4.0}
    assert (loss.loss_agg_mode, loss.loss_scale_factor) == ("seq-mean-token-sum-norm", 9.0)
    assert (loss.entropy_coeff, loss.use_kl_loss, loss.kl_loss_coef, loss.kl_loss_type) == (0.01, True, 0.2, "abs")
    assert loss.needs_entropy


def test_value_loss_binds_every_setting() -> None:
    loss = table.build_value_loss(
        config(
            critic={"cliprange_value": 0.7, "loss_agg_mode": "seq-mean-token-sum-norm"},
            data={"max_response_length": 33},
        )
    )
    assert loss.token_loss.keywords == {"clip_range": 0.7}
    assert (loss.loss_agg_mode, loss.loss_scale_factor) == ("seq-mean-token-sum-norm", 33.0)


def test_what_is_built_travels_to_workers(make_batch) -> None:
    built = [f(config()) for f in (table.build_algorithm, table.build_policy_loss, table.build_value_loss)]
    algorithm, actor_loss, critic_loss = pickle.loads(pickle.dumps(built))
    batch = make_batch([(1, [True])], rewards=[0.0, 1.0], values=[0.0, 0.25])
    assert torch.equal(algorithm.advantages(batch)["returns"], built[0].advantages(batch)["returns"])
    assert algorithm.greedy_baseline is False
    assert (actor_loss.loss_agg_mode, critic_loss.loss_agg_mode) == ("token-mean", "token-mean")
    assert actor_loss.token_loss.keywords == built[1].token_loss.keywords


def test_the_configuration_knows_the_same_estimators_and_which_need_a_critic() -> None:
    assert list(ESTIMATORS) == list(table.ALGORITHMS) == list(get_args(AdvEstimator))
    for name, row in table.ALGORITHMS.items():
        assert row.needs_critic is ESTIMATORS[name].needs_critic, name


class Reading:
    """Stands in for the algorithm's settings and remembers which were read."""

    def __init__(self) -> None:
        self.seen: set[str] = set()

    def __getattr__(self, key: str) -> float:
        self.seen.add(f"algorithm.{key}")
        return 1.0


@pytest.mark.parametrize("name", get_args(AdvEstimator))
def test_the_configuration_knows_which_keys_an_estimator_reads(name: str) -> None:
    settings = Reading()
    table.ALGORITHMS[name].bind(settings)
    assert settings.seen == set(ESTIMATORS[name].reads)


class ReadingActor:
    """Stands in for the actor's settings and remembers which were read, below ``prefix`` too."""

    def __init__(self, seen: set[str], prefix: str = "") -> None:
        self._seen, self._prefix = seen, prefix

    def __getattr__(self, key: str) -> object:
        if key == "policy_loss":
            return ReadingActor(self._seen, "policy_loss.")
        self._seen.add(self._prefix + key)
        return None if key in ("clip_ratio_low", "clip_ratio_high") else 1.0


@pytest.mark.parametrize("name", get_args(LossMode))
def test_the_configuration_knows_which_keys_a_policy_loss_reads(name: str) -> None:
    seen: set[str] = set()
    table.POLICY_LOSSES[name](ReadingActor(seen))
    if name in table.TOKEN_CHOICES:
        table.TOKEN_CHOICES[name](ReadingActor(seen, "policy_loss."), 1)
    assert seen == set(LOSSES[name].reads)


def test_rows_of_losses_are_those_of_the_configuration() -> None:
    assert list(LOSSES) == list(table.POLICY_LOSSES)
    assert table.TOKEN_CHOICES.keys() <= table.POLICY_LOSSES.keys()


@pytest.mark.parametrize(
    ("mode", "bound"),
    [
        ("gspo", {"clip_low": 0.1, "clip_high": 0.3}),
        ("clip_cov", {"clip_low": 0.1, "clip_high": 0.3}),
        ("kl_cov", {"kl_coef": 0.7}),
        ("geo_mean", {"clip_low": 0.1, "clip_high": 0.3}),
        ("cispo", {"clip_low": 0.1, "clip_high": 0.3}),
        ("sapo", {"tau_pos": 2.0, "tau_neg": 3.0}),
        ("dro", {"beta": 0.6}),
        ("dppo_tv", {"clip_low": 0.1, "clip_high": 0.3}),
        ("dppo_kl", {"clip_low": 0.1, "clip_high": 0.3}),
    ],
)
def test_each_policy_loss_binds_its_settings_and_travels(mode: str, bound: dict) -> None:
    actor = {
        "clip_ratio": 0.1,
        "clip_ratio_high": 0.3,
        "tau_pos": 2.0,
        "tau_neg": 3.0,
        "policy_loss": {"loss_mode": mode, "ppo_kl_coef": 0.7, "dro_beta": 0.6},
    }
    loss = table.build_policy_loss(config(actor_rollout_ref={"actor": actor}))
    assert loss.token_loss.func.__name__ == mode
    assert loss.token_loss.keywords == bound
    assert pickle.loads(pickle.dumps(loss)).token_loss.keywords == bound


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("vanilla", ChooseNone()),
        ("clip_cov", ChooseBand(0.01, 2.0, 3.0, seed=5)),
        ("kl_cov", ChooseTop(0.02)),
    ],
)
def test_token_choice_binds_its_settings(mode: str, expected) -> None:
    settings = {"loss_mode": mode, "clip_cov_ratio": 0.01, "clip_cov_lb": 2.0, "clip_cov_ub": 3.0, "kl_cov_ratio": 0.02}
    built = table.build_token_choice(
        config(actor_rollout_ref={"actor": {"policy_loss": settings}}, trainer={"seed": 5})
    )
    assert built == expected
