from __future__ import annotations

import pytest

from laurel.config.load import load
from laurel.rewards.check import check
from laurel.rewards.overlong import OverlongPenalty, overlong_penalty
from laurel.types import Score

KWARGS = "reward.reward_kwargs"
BUFFER = f"{KWARGS}.overlong_buffer_cfg"
DAPO = ("reward.reward_manager.name=dapo", "data.max_response_length=20480")
ON = (*DAPO, f"{BUFFER}.enable=True")


@pytest.mark.parametrize(
    ("length", "penalty"),
    [(0, 0), (16, 0), (17, -0.5), (18, -1.0), (19, -1.5), (20, -2.0), (21, -2.0), (25, -2.0)],
)
def test_equation_13_worked_by_hand(length, penalty):
    """L_max 20, L_cache 4: from 17 tokens on a quarter more per token, twice as dear; never more than the whole."""
    assert OverlongPenalty(longest=20, buffer=4, factor=2.0).of(length) == penalty


def test_the_numbers_of_the_paper():
    penalty = overlong_penalty(load([*ON, f"{BUFFER}.len=4096"]).config)
    assert [penalty.of(length) for length in (16384, 17408, 18432, 20480)] == [0, -0.25, -0.5, -1.0]


def test_the_raw_score_stays_beside_the_shaped_one():
    penalty = OverlongPenalty(longest=20, buffer=4, factor=1.0)
    assert penalty.shape(Score(1.0, {"acc": 1.0}), 18) == Score(0.5, {"acc": 1.0, "score": 1.0})


def test_what_is_not_given_is_derived():
    assert overlong_penalty(load(list(ON)).config) == OverlongPenalty(20480, 4096, 1.0, log=False)
    shorter = overlong_penalty(load([*ON, f"{KWARGS}.max_resp_len=100"]).config)
    assert shorter == OverlongPenalty(100, 20, 1.0)
    assert overlong_penalty(load([*ON, "data.max_response_length=3"]).config).buffer == 1
    assert overlong_penalty(load([*ON, f"{BUFFER}.len=null", f"{BUFFER}.penalty_factor=null"]).config).buffer == 4096


def test_it_is_off_unless_it_is_switched_on():
    for given in ([], [*DAPO], [*DAPO, f"{BUFFER}.len=8"], [f"{BUFFER}.enable=False"], [f"{BUFFER}=null"]):
        config = load(given).config
        assert overlong_penalty(config) is None
        assert check(config) == []


@pytest.mark.parametrize("old", ["reward_model.overlong_buffer", "reward_model.reward_kwargs.overlong_buffer_cfg"])
def test_names_that_verl_had_for_it_before(old):
    words = [*DAPO, f"+{old}.enable=True", f"+{old}.len=4096", f"+{old}.penalty_factor=2.0", f"+{old}.log=True"]
    assert overlong_penalty(load(words).config) == OverlongPenalty(20480, 4096, 2.0, log=True)


@pytest.mark.parametrize(
    ("words", "field", "value", "cure"),
    [
        ([f"{BUFFER}.enable=1"], f"{BUFFER}.enable", 1, "must be True or False"),
        ([f"{BUFFER}.log=yes"], f"{BUFFER}.log", "yes", "must be True or False"),
        ([f"{BUFFER}.len=0"], f"{BUFFER}.len", 0, "whole number of tokens, at least 1"),
        ([f"{BUFFER}.len=1.5"], f"{BUFFER}.len", 1.5, "whole number of tokens, at least 1"),
        ([f"{BUFFER}.len=True"], f"{BUFFER}.len", True, "whole number of tokens, at least 1"),
        ([f"{BUFFER}.len=30000"], f"{BUFFER}.len", 30000, "more than the longest response, 20480 tokens; use 4096"),
        ([f"{BUFFER}.penalty_factor=-1"], f"{BUFFER}.penalty_factor", -1, "at least 0"),
        ([f"{BUFFER}.lenght=4"], f"{BUFFER}.lenght", 4, "unknown key; did you mean len?"),
        ([f"{BUFFER}.x=4"], f"{BUFFER}.x", 4, "known are enable, len, penalty_factor, log"),
        ([f"{BUFFER}=4096"], BUFFER, 4096, "must be a group of enable, len, penalty_factor, log"),
        ([f"{KWARGS}.max_resp_len=0"], f"{KWARGS}.max_resp_len", 0, "null is data.max_response_length"),
        ([f"{KWARGS}.max_resp_len=30000"], f"{KWARGS}.max_resp_len", 30000, "data.max_response_length=20480"),
        (["reward.reward_manager.name=naive"], f"{BUFFER}.enable", True, "set reward.reward_manager.name=dapo"),
    ],
)
def test_wrong_settings_are_found_at_load(words, field, value, cure):
    (problem,) = check(load([*ON, *words]).config)
    assert (problem.field, problem.value) == (field, value)
    assert cure in problem.cure


def test_wrong_settings_are_found_together():
    problems = check(load([*ON, f"{BUFFER}.len=0", f"{BUFFER}.log=3", f"{KWARGS}.max_resp_len=x"]).config)
    assert {problem.field for problem in problems} == {f"{BUFFER}.len", f"{BUFFER}.log", f"{KWARGS}.max_resp_len"}
