from __future__ import annotations

import subprocess
import sys

import pytest

from laurel.algos.check import check
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


def test_a_group_to_compare_is_fine() -> None:
    assert problems(algorithm={"adv_estimator": "grpo"}, actor_rollout_ref={"rollout": {"n": 2}}) == []


def test_check_imports_no_torch() -> None:
    code = "import sys, laurel.algos.check; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
