"""Effects of reward.*: on scores."""

from typing import get_args

from unit.effects.registry import effect

from laurel.config.tree import RewardManager
from laurel.rewards import reward_fn
from laurel.trainer.build import prepare

CUSTOM = "reward.custom_reward_function"
FUNCTIONS = """
def compute_score(data_source, solution_str, ground_truth, extra_info):
    return len(solution_str)

def twice(data_source, solution_str, ground_truth, extra_info):
    return 2 * len(solution_str)
"""


def score(config, text="42"):
    prepared = prepare(config)
    return prepared.reward.score(text, prepared.train_prompts[0]).value


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


@effect("reward.reward_manager.name")
def test_reward_manager_is_looked_up_by_its_name(key, settings, monkeypatch):
    config = settings(f"{key}=naive")
    assert type(prepare(config).reward) is reward_fn.MANAGERS["naive"]

    class Other(reward_fn.RewardFn):
        pass

    monkeypatch.setitem(reward_fn.MANAGERS, "naive", Other)
    assert type(prepare(config).reward) is Other
    assert "must be one of naive" in settings.refused(f"{key}=no_such_manager").cure
    assert [*reward_fn.MANAGERS] == [*get_args(RewardManager.model_fields["name"].annotation)]
