from __future__ import annotations

import pytest

from laurel.config.tree import Config
from laurel.rewards.check import check

GOOD = "def compute_score(data_source, solution_str, ground_truth, extra_info=None, **kwargs):\n    return 1.0\n"


def config(path=None, name="compute_score", **kwargs):
    return Config.model_validate(
        {"reward": {"custom_reward_function": {"path": path and str(path), "name": name}, "reward_kwargs": kwargs}}
    )


def of_file(tmp_path, text, **kwargs):
    file = tmp_path / "mine.py"
    file.write_text(text)
    return check(config(file, **kwargs), {"x/y": "train.parquet"})


def test_known_sources_have_no_problems():
    assert check(config(), {"openai/gsm8k": "a", "aime24": "b", "laurel/arithmetic": "c"}) == []
    assert check(config()) == []


def test_a_source_that_nobody_scores_is_found_with_its_file():
    (problem,) = check(config(), {"openai/gsm8k": "a", "x/y": "train.parquet"})
    assert (problem.field, problem.value) == ("data.reward_fn_key=data_source", "x/y")
    assert "found in train.parquet" in problem.cure
    assert "reward.custom_reward_function.path" in problem.cure


def test_arguments_that_a_built_in_function_does_not_take_are_found():
    (problem,) = check(config(method="flexible", bonus=[1]), {"openai/gsm8k": "a"})
    assert (problem.field, problem.value) == ("reward.reward_kwargs.bonus", [1])
    assert (
        problem.cure
        == "the reward function of openai/gsm8k takes no such argument; it takes method, score, format_score"
    )


def test_a_wrong_argument_is_said_once_for_each_function():
    sources = {"aime24": "a", "aime25": "a", "math": "a", "laurel/arithmetic": "b"}
    assert [p.field for p in check(config(method="flexible"), sources)] == ["reward.reward_kwargs.method"]
    assert len(check(config(bonus=1), sources)) == 2


def test_what_the_reward_manager_reads_is_no_argument_of_the_function(tmp_path):
    buffer = {"overlong_buffer_cfg": {"enable": False}, "max_resp_len": 100}
    assert check(config(**buffer), {"openai/gsm8k": "a"}) == []
    plain = "def compute_score(data_source, solution_str, ground_truth, extra_info): pass\n"
    assert of_file(tmp_path, plain, **buffer) == []


def test_a_custom_function_scores_every_source_and_is_not_run(tmp_path):
    assert of_file(tmp_path, GOOD + "raise SystemExit('run')\n") == []


@pytest.mark.parametrize(
    ("text", "kwargs", "cure"),
    [
        ("def other(): pass\n", {}, "defines no such function; its functions are: other"),
        ("def f(:\n", {}, "is no valid Python"),
        ("async def compute_score(**k): pass\n", {}, "write a plain def"),
        ("def compute_score(solution_str, ground_truth, **k): pass\n", {}, None),
        ("def compute_score(solution_str, ground_truth): pass\n", {}, "does not take 'data_source'"),
        ("def compute_score(model, **k): pass\n", {}, "needs argument 'model', which nobody passes"),
        ("def compute_score(model, **k): pass\n", {"model": "x"}, None),
        ("def compute_score(*, model=1, **k): pass\n", {}, None),
        (
            "def compute_score(data_source, solution_str, ground_truth, extra_info): pass\n",
            {"bonus": 1},
            "take 'bonus'",
        ),
        ("def compute_score(solution_str, /, **k): pass\n", {}, "takes 'solution_str' by position only"),
        ("from elsewhere import compute_score\n", {}, None),
        ("import functools\ncompute_score = functools.partial(print)\n", {}, None),
    ],
)
def test_what_a_custom_file_defines_is_checked(tmp_path, text, kwargs, cure):
    problems = of_file(tmp_path, text, **kwargs)
    if cure is None:
        assert problems == []
    else:
        assert cure in problems[0].cure
        assert problems[0].field.startswith("reward.custom_reward_function.")


def test_a_missing_file_and_a_wrong_suffix(tmp_path):
    (problem,) = check(config(tmp_path / "absent.py"))
    assert "does not exist" in problem.cure
    (tmp_path / "mine.txt").write_text(GOOD)
    (problem,) = check(config(tmp_path / "mine.txt"))
    assert "must end in .py" in problem.cure
