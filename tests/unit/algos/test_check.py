from __future__ import annotations

import subprocess
import sys
from typing import get_args

import pytest

from laurel.algos.check import check
from laurel.config.estimators import AdvEstimator
from laurel.config.tree import Config


def problems(**sections: dict) -> list[str]:
    return [problem.field for problem in check(Config.model_validate(sections))]


def test_defaults_are_fine() -> None:
    assert problems() == []


@pytest.mark.parametrize(
    ("sections", "field"),
    [
        ({"critic": {"enable": False}}, "critic.enable"),
        ({"algorithm": {"adv_estimator": "grpo"}}, "actor_rollout_ref.rollout.n"),
        (
            {"algorithm": {"use_kl_in_reward": True, "kl_ctrl": {"type": "adaptive", "kl_coef": 0}}},
            "algorithm.kl_ctrl.kl_coef",
        ),
        ({"actor_rollout_ref": {"actor": {"clip_ratio_low": 1.0}}}, "actor_rollout_ref.actor.clip_ratio_low"),
        ({"actor_rollout_ref": {"actor": {"clip_ratio_c": 1.1}}}, "actor_rollout_ref.actor.clip_ratio_c"),
    ],
)
def test_each_problem_is_found_alone(sections: dict, field: str) -> None:
    assert problems(**sections) == [field]


def gdpo(rollout: int = 2, **settings) -> list[str]:
    return problems(algorithm={"adv_estimator": "gdpo", **settings}, actor_rollout_ref={"rollout": {"n": rollout}})


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({}, "algorithm.gdpo_reward_keys"),
        ({"gdpo_reward_keys": ["a", "b", "a"]}, "algorithm.gdpo_reward_keys"),
        ({"gdpo_reward_keys": ["a", "b"], "gdpo_reward_weights": [1.0]}, "algorithm.gdpo_reward_weights"),
        ({"gdpo_reward_keys": ["a"], "use_kl_in_reward": True}, "algorithm.use_kl_in_reward"),
    ],
)
def test_heads_of_gdpo(settings: dict, field: str) -> None:
    assert gdpo(**settings) == [field]


def test_heads_of_gdpo_that_are_fine() -> None:
    assert gdpo(gdpo_reward_keys=["a", "b"]) == []
    assert gdpo(gdpo_reward_keys=["a", "b"], gdpo_reward_weights=[1.0, 0.0]) == []


@pytest.mark.parametrize("name", get_args(AdvEstimator))
def test_what_compares_a_group_needs_two_samples(name: str) -> None:
    heads = {"gdpo_reward_keys": ["a"]} if name == "gdpo" else {}
    found = problems(algorithm={"adv_estimator": name, **heads}, actor_rollout_ref={"rollout": {"n": 1}})
    alone = name in ("gae", "reinforce_plus_plus", "remax")
    assert found == ([] if alone else ["actor_rollout_ref.rollout.n"])


def test_a_group_to_compare_is_fine() -> None:
    assert problems(algorithm={"adv_estimator": "grpo"}, actor_rollout_ref={"rollout": {"n": 2}}) == []


def test_check_imports_no_torch() -> None:
    code = "import sys, laurel.algos.check; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


LOSS, CORRECTION = "actor_rollout_ref.actor", "algorithm.rollout_correction"


def with_loss(mode: str, **actor: object) -> list[str]:
    losses = {"loss_mode": mode} | {key: actor.pop(key) for key in list(actor) if key.startswith("clip_cov")}
    return problems(actor_rollout_ref={"actor": {**actor, "policy_loss": losses}})


@pytest.mark.parametrize("mode", ["vanilla", "gspo", "clip_cov", "dppo_tv"])
def test_a_range_that_never_clips_is_a_problem(mode: str) -> None:
    assert with_loss(mode, clip_ratio_low=1.0) == [f"{LOSS}.clip_ratio_low"]


@pytest.mark.parametrize("mode", ["geo_mean", "dppo_kl", "cispo", "gpg", "kl_cov", "sapo", "dro"])
def test_a_range_of_logarithms_or_one_that_is_not_read_is_fine(mode: str) -> None:
    assert with_loss(mode, clip_ratio_low=1.0, clip_ratio_c=1.1) == []


def test_an_empty_band_of_covariances_is_a_problem() -> None:
    assert with_loss("clip_cov", clip_cov_lb=5.0) == [f"{LOSS}.policy_loss.clip_cov_lb"]
    assert with_loss("kl_cov", clip_cov_lb=5.0) == []


@pytest.mark.parametrize(
    ("given", "cure"),
    [
        ({"rollout_rs": "geometric"}, "use 1.001"),
        ({"rollout_rs": "token"}, "use 2.0"),
        ({"rollout_rs": "token", "rollout_rs_threshold": 0.5}, "give a number above 1"),
        ({"rollout_rs": "token", "rollout_rs_threshold": 2.0, "rollout_rs_threshold_lower": 3.0}, "swap them"),
    ],
)
def test_a_rejection_that_keeps_nothing_is_a_problem(given: dict, cure: str) -> None:
    (problem,) = check(Config.model_validate({"algorithm": {"rollout_correction": given}}))
    assert problem.field == f"{CORRECTION}.rollout_rs_threshold"
    assert cure in problem.cure
    assert problems(algorithm={"rollout_correction": {**given, "bypass_mode": True}}) == []


@pytest.mark.parametrize("lower", [None, 0.0, 2.0])
def test_a_rejection_that_keeps_something_is_fine(lower: float | None) -> None:
    given = {"rollout_rs": "token", "rollout_rs_threshold": 2.0, "rollout_rs_threshold_lower": lower}
    assert problems(algorithm={"rollout_correction": given}) == []


@pytest.mark.parametrize(("veto", "found"), [(1.0, True), (2.0, True), (0.999, False), (1e-4, False), (None, False)])
def test_a_veto_that_takes_nearly_every_row_is_a_problem(veto: float | None, found: bool) -> None:
    fields = problems(algorithm={"rollout_correction": {"rollout_token_veto_threshold": veto}})
    assert ("algorithm.rollout_correction.rollout_token_veto_threshold" in fields) is found
