import pytest

from laurel.preflight.doctor.reward import examine, gold, sampled, wrong
from laurel.rewards.reward_fn import RewardFn
from laurel.types import Prompt

ROWS = [
    ("openai/gsm8k", "1,234"),
    ("openai/gsm8k", "-7"),
    ("lighteval/MATH", r"\frac{1}{2}"),
    ("laurel/arithmetic", "9"),
]


def prompt(source, truth, index=0):
    return Prompt(index, (1,), ({"role": "user", "content": "?"},), source, truth)


PROMPTS = [prompt(*row, index) for index, row in enumerate(ROWS)]


def test_gold_scores_and_wrong_does_not():
    assert examine(PROMPTS, RewardFn(), custom=None) == []


def test_arguments_that_pay_a_wrong_answer_as_much():
    (found,) = examine(PROMPTS[3:], RewardFn(kwargs={"score": 0.1}), custom=None)
    assert (found.topic, found.severity) == ("reward", "error")
    assert found.what == "data source laurel/arithmetic, row 3: the gold answer '9' scores 0.1, a wrong one 0.1"
    assert "reward.reward_kwargs" in found.cure


def test_a_row_that_cannot_be_scored_names_itself():
    (found,) = examine([prompt("openai/gsm8k", "many", 5)], RewardFn(), custom=None)
    assert found.severity == "error"
    assert "row 5" in found.what
    assert found.cure


@pytest.mark.parametrize(
    ("function", "found"),
    [
        (lambda **words: float(words["solution_str"] == words["ground_truth"]), 0),
        (
            lambda **words: float(
                "<answer>" in words["solution_str"] and words["ground_truth"] in words["solution_str"]
            ),
            0,
        ),
        (lambda **words: 0.0, 1),
        (lambda **words: float(words["ground_truth"] not in words["solution_str"]), 1),
        (lambda **words: float(len(words["solution_str"])), 1),  # blind for what is right
    ],
)
def test_a_function_of_the_user_is_only_warned_about(function, found):
    reward = RewardFn(custom=("mine.py:score", function))
    findings = examine(PROMPTS[:1], reward, custom="mine.py:score")
    assert [one.severity for one in findings] == ["warning"] * found
    assert all("mine.py:score wants another form" in one.cure for one in findings)


def test_a_function_of_the_user_that_raises_would_end_the_run():
    def function(**words):
        raise KeyError("answer")

    (found,) = examine(PROMPTS[:1], RewardFn(custom=("mine.py:score", function)), custom="mine.py:score")
    assert found.severity == "error"
    assert "raised KeyError" in found.what


def test_a_wrong_answer_looks_like_the_right_one():
    assert [wrong(truth) for truth in ("1,234", "9", "yes", "Z")] == ["2,345", "2", "zzz", "Q"]
    assert [gold(truth) for truth in ("a", ["b", "c"], 5, {"x": 1})] == ["a", "b", "5", '{"x": 1}']
    for _, truth in ROWS:
        assert wrong(truth) != truth
        assert len(wrong(truth)) == len(truth)


def test_rows_of_every_source():
    prompts = [prompt("a", "1", index) for index in range(5)] + [prompt("b", "1", 5)]
    assert [row.index for row in sampled(prompts, 2)] == [0, 1, 5]


def test_tests_of_programs_are_run_on_one_that_does_nothing():
    good = '{"inputs": ["1 2"], "outputs": ["3"]}'
    assert examine([prompt("laurel/code", good)], RewardFn(), custom=None) == []
    (empty,) = examine([prompt("laurel/code", '{"inputs": ["1"], "outputs": [""]}', 4)], RewardFn(), custom=None)
    assert empty.severity == "warning"
    assert "row 4: a program that does nothing scores 1" in empty.what
    (broken,) = examine([prompt("laurel/code", "{")], RewardFn(), custom=None)
    assert broken.severity == "error"
    assert "is no JSON" in broken.what


def test_a_truth_that_is_no_answer_is_left_to_the_function_of_the_user():
    nothing = RewardFn(custom=("mine.py:score", lambda **words: 0.0))
    assert examine([prompt("mine", {"tests": [1]})], nothing, custom="mine.py:score") == []
