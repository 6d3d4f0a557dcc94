"""Effects of reward.*: on scores."""

import asyncio
import os
import threading
from typing import get_args

from unit.effects.registry import effect

from laurel.config.tree import RewardManager
from laurel.rewards import reward_fn
from laurel.rewards.pool import build_scorer
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


SLOW = """
import os, time

def compute_score(data_source, solution_str, ground_truth, extra_info):
    held = bytearray(b"x") * (200 << 20 if solution_str == "big" else 1)
    time.sleep(3 if solution_str in ("big", "slow") else 0.2)
    return {"score": 1.0, "pid": os.getpid()}
"""


def outcomes(config, *texts):
    """What the scorer that ``config`` asks for makes of each text: its kind of failure, or the process that scored."""
    prepared = prepare(config)
    scorer = build_scorer(config, prepared.reward, cores=1)

    async def every():
        prompt = prepared.train_prompts[0]
        return await asyncio.gather(*(scorer.score(text, prompt, i, length=1) for i, text in enumerate(texts)))

    try:
        results = [scored.result for scored in asyncio.run(every())]
    finally:
        scorer.close()
    return [result.extras["pid"] if isinstance(result, Score) else result.kind for result in results]


@effect("reward.num_workers")
def test_num_workers_is_the_number_of_processes_that_score(key, settings, tmp_path):
    (tmp_path / "mine.py").write_text(SLOW)
    mine = f"{CUSTOM}.path={tmp_path}/mine.py"
    before = threading.active_count()
    used = [len(set(outcomes(settings(mine, f"{key}={n}"), "a", "b", "c", "d"))) for n in (1, 2)]
    assert used == [1, 2]
    assert set(outcomes(settings(mine, f"{key}=0"), "a")) == {os.getpid()}
    assert threading.active_count() == before


@effect("reward.timeout")
def test_timeout_ends_a_score(key, settings, tmp_path):
    (tmp_path / "mine.py").write_text(SLOW)
    mine = f"{CUSTOM}.path={tmp_path}/mine.py"
    assert outcomes(settings(mine, f"{key}=1"), "slow") == ["time"]
    assert outcomes(settings(mine, f"{key}=30"), "slow") != ["time"]


@effect("reward.memory_limit_mb")
def test_memory_limit_ends_a_score(key, settings, tmp_path):
    (tmp_path / "mine.py").write_text(SLOW)
    mine = f"{CUSTOM}.path={tmp_path}/mine.py"
    assert outcomes(settings(mine, f"{key}=150"), "big") == ["memory"]
    assert outcomes(settings(mine, f"{key}=2000"), "big") != ["memory"]
