from __future__ import annotations

import math

import pytest

from laurel.config.tree import Config
from laurel.rewards.reward_fn import MANAGERS, RewardError, RewardFn, function_kwargs, load_reward_fn
from laurel.types import Prompt, Score


def prompt(source="openai/gsm8k", truth="42", index=17):
    return Prompt(index, (1,), (), source, truth, extra_info={"split": "train"})


def config(path=None, name="compute_score", **kwargs):
    return Config.model_validate(
        {"reward": {"custom_reward_function": {"path": path and str(path), "name": name}, "reward_kwargs": kwargs}}
    )


def test_the_data_source_chooses_the_function():
    reward = load_reward_fn(config())
    assert reward.score("#### 42", prompt(), length=1) == Score(1.0, {"acc": 1.0, "strict": 1.0, "flexible": 1.0})
    assert reward.score("\\boxed{0.5}", prompt("aime24", "\\frac12"), length=1).value == 1.0
    assert reward.score("5", prompt("laurel/arithmetic", "4"), length=1).value == 0.1


def test_reward_kwargs_reach_the_function():
    assert load_reward_fn(config(method="flexible")).score("so 42", prompt(), length=1).value == 1.0


def test_an_unknown_data_source_names_the_row():
    with pytest.raises(RewardError, match=r"row 17: data_source='x/y' has no reward function; use one of openai/gsm8k"):
        load_reward_fn(config()).score("42", prompt("x/y"), length=1)


def test_a_custom_function_gets_everything_by_name(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        "def f(data_source, solution_str, ground_truth, extra_info, bonus=0):\n"
        "    assert (data_source, ground_truth, extra_info) == ('openai/gsm8k', '42', {'split': 'train'})\n"
        "    return {'score': len(solution_str) + bonus, 'length': len(solution_str)}\n"
    )
    assert load_reward_fn(config(file, "f", bonus=10)).score("abc", prompt(), length=1) == Score(13.0, {"length": 3.0})


def custom(result):
    def function(**_):
        if isinstance(result, Exception):
            raise result
        return result

    return RewardFn(custom=("mine.py:f", function))


class Zero:
    """Like a tensor without dimensions."""

    ndim = 0

    def item(self):
        return 0.25


@pytest.mark.parametrize(("result", "value"), [(1, 1.0), (0.5, 0.5), (True, 1.0), ({"score": 2}, 2.0), (Zero(), 0.25)])
def test_numbers_are_scores(result, value):
    assert custom(result).score("x", prompt(), length=1) == Score(value, {})


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (None, "returned None of type NoneType"),
        ("1", "returned '1' of type str"),
        ([1.0], r"returned \[1\.0\] of type list"),
        (math.nan, "returned nan; a score must be finite"),
        (-math.inf, "returned -inf; a score must be finite"),
        ({"acc": 1.0}, r"returned a dict without 'score'; its keys are \['acc'\]"),
        ({"score": None}, "key 'score', returned None"),
        ({"score": 1.0, "acc": math.nan}, "key 'acc', returned nan"),
        (KeyError("answer"), "raised KeyError: 'answer'"),
    ],
)
def test_anything_else_is_an_error_that_names_function_and_row(result, message):
    where = r"reward function mine\.py:f on row 17 \(data_source 'openai/gsm8k', sample 3\)"
    with pytest.raises(RewardError, match=f"^{where},? ?{message}"):
        custom(result).score("x", prompt(), sample=3, length=1)


def test_the_cause_is_kept():
    cause = ValueError("no")
    with pytest.raises(RewardError) as error:
        custom(cause).score("x", prompt(), length=1)
    assert error.value.__cause__ is cause


def test_a_built_in_scorer_that_fails_names_itself_and_the_row():
    with pytest.raises(
        RewardError, match=r"laurel\.rewards\.gsm8k\.compute_score on row 17 .*ground_truth='x' is no number"
    ):
        load_reward_fn(config()).score("#### 1", prompt(truth="x"), length=1)


def test_a_custom_file_that_cannot_be_used(tmp_path):
    file = tmp_path / "mine.py"
    with pytest.raises(RewardError, match=r"mine\.py' does not exist"):
        load_reward_fn(config(file))
    file.write_text("import absent_package_of_mine")
    with pytest.raises(
        RewardError, match="raised ModuleNotFoundError when imported: No module named 'absent_package_of_mine'"
    ):
        load_reward_fn(config(file))
    file.write_text("compute_score = 3")
    with pytest.raises(RewardError, match="name='compute_score' is no function"):
        load_reward_fn(config(file))


def managed(result, name="dapo", *, limit=20, **kwargs):
    """A reward function of the user's that returns ``result``, under a reward manager."""
    settings = {"reward": {"reward_manager": {"name": name}, "reward_kwargs": kwargs}}
    shape = MANAGERS[name](Config.model_validate(settings | {"data": {"max_response_length": limit}}))
    return RewardFn(custom=("mine.py:f", lambda **_: result), kwargs=function_kwargs(kwargs), shape=shape)


BUFFER = {"enable": True, "len": 4, "penalty_factor": 2.0}


@pytest.mark.parametrize(("length", "value"), [(1, 1.0), (16, 1.0), (17, 0.5), (18, 0.0), (20, -1.0)])
def test_dapo_takes_the_over_long_penalty_off_the_score(length, value):
    reward = managed({"score": 1.0, "acc": 1.0}, overlong_buffer_cfg=BUFFER)
    assert reward.score("x", prompt(), length=length) == Score(value, {"acc": 1.0, "score": 1.0})


def test_dapo_reports_the_penalty_where_it_is_asked_to():
    reward = managed({"score": 1.0, "acc": 1.0}, overlong_buffer_cfg=BUFFER | {"log": True})
    raw = {"acc": 1.0, "score": 1.0}
    assert reward.score("x", prompt(), length=17).extras == raw | {"overlong_reward": -0.5, "overlong": 1.0}
    assert reward.score("x", prompt(), length=16).extras == raw | {"overlong_reward": 0.0, "overlong": 0.0}


def test_dapo_takes_a_plain_number_as_the_accuracy_too():
    assert managed(0.5).score("x", prompt(), length=20) == Score(0.5, {"acc": 0.5})
    assert managed({"score": 0.5, "strict": 1}).score("x", prompt(), length=20) == Score(0.5, {"strict": 1.0})
    assert managed(0.5, "naive").score("x", prompt(), length=20) == Score(0.5, {})


def test_what_the_manager_reads_does_not_reach_the_function():
    off = {"overlong_buffer_cfg": {"enable": False}, "max_resp_len": 20}
    reward = load_reward_fn(config(method="flexible", **off))
    assert reward.score("so 42", prompt(), length=20).value == 1.0  # an argument it does not take would be an error
