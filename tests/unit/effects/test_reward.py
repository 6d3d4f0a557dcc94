"""Effects of reward.*: on scores."""

from typing import get_args

from unit.effects.registry import effect

from laurel.config.tree import RewardManager
from laurel.rewards import reward_fn
from laurel.trainer.build import prepare
from laurel.types import Score

CUSTOM = "reward.custom_reward_function"
FUNCTIONS = """
def compute_score(data_source, solution_str, ground_truth, extra_info):
    return len(solution_str)

def twice(data_source, solution_str, ground_truth, extra_info):
    return 2 * len(solution_str)
"""


def score(config, text="42", *, length=1):
    prepared = prepare(config)
    return prepared.reward.score(text, prepared.train_prompts[0], length=length).value


@effect(f"{CUSTOM}.path")
def test_a_custom_function_replaces_the_built_in_one(key, settings, tmp_path):
    (tmp_path / "mine.py").write_text(FUNCTIONS)
    assert score(settings()) == 1.0  # the ground truth is 42
    assert score(settings(f"{key}={tmp_path}/mine.py")) == 2.0


@effect(f"{CUSTOM}.name")
def test_name_chooses_the_function_of_the_file(key, settings, tmp_path):
    (tmp_path / "mine.py").write_text(FUNCTIONS)
    scores = [
        score(settings(f"{CUSTOM}.path={tmp_path}/mine.py", f"{key}={name}")) for name in ("compute_score", "twice")
    ]
    assert scores == [2.0, 4.0]


@effect("reward.reward_kwargs")
def test_reward_kwargs_reach_the_function(key, settings):
    assert score(settings(), "7") == 0.1  # a number, but the wrong one
    assert score(settings(f"{key}.format_score=0.25"), "7") == 0.25


@effect("reward.reward_kwargs")
def test_reward_kwargs_of_the_over_long_penalty_reach_the_manager(key, settings):
    on = ("reward.reward_manager.name=dapo", f"{key}.overlong_buffer_cfg.enable=True")
    assert [score(settings(*on, f"{key}.overlong_buffer_cfg.len=4"), length=n) for n in (4, 5, 8)] == [1, 0.75, 0]
    factor = f"{key}.overlong_buffer_cfg.penalty_factor=0.5"
    assert score(settings(*on, factor, f"{key}.overlong_buffer_cfg.len=4"), length=8) == 0.5
    assert [score(settings(*on), length=n) for n in (7, 8)] == [1, 0]  # a fifth of 8 tokens is one


@effect("reward.reward_manager.name")
def test_reward_manager_is_looked_up_by_its_name(key, settings, monkeypatch):
    penalty = [f"reward.reward_kwargs.overlong_buffer_cfg.{setting}" for setting in ("enable=True", "len=4")]
    assert score(settings(f"{key}=dapo", *penalty), length=8) == 0.0
    monkeypatch.setitem(reward_fn.MANAGERS, "naive", lambda config: lambda score, length: Score(10.0 * length))
    assert score(settings(f"{key}=naive"), length=8) == 80.0
    assert "must be one of naive, dapo" in settings.refused(f"{key}=no_such_manager").cure
    assert [*reward_fn.MANAGERS] == [*get_args(RewardManager.model_fields["name"].annotation)]
