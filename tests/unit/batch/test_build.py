import pytest

from laurel.batch.build import build_batch
from laurel.types import Group, LaurelError, Prompt, Score, Trajectory, Turn

PROMPT = Prompt(index=3, input_ids=(5, 6), messages=(), data_source="d", ground_truth="7")


def trajectory(*turns: Turn, score: float | None = 1.0, finish_reason="stop") -> Trajectory:
    return Trajectory(0, turns, finish_reason, policy_version=2, score=None if score is None else Score(score))


def test_prompt_response_and_environment_tokens():
    plain = trajectory(Turn((7, 8), True, (-0.5, -0.25)))
    turns = Turn((9,), True, (-1.0,)), Turn((1, 1), False), Turn((2,), True, (-2.0,))
    with_environment = trajectory(*turns, finish_reason="length")
    batch = build_batch([Group(PROMPT, (plain,)), Group(PROMPT, (with_environment,))])
    assert batch.input_ids.tolist() == [5, 6, 7, 8, 5, 6, 9, 1, 1, 2]
    assert batch.position_ids.tolist() == [0, 1, 2, 3, 0, 1, 2, 3, 4, 5]
    assert batch.response_mask.tolist() == [False, False, True, True, False, False, True, False, False, True]
    assert batch.rollout_log_probs.tolist() == [0, 0, -0.5, -0.25, 0, 0, -1, 0, 0, -2]
    assert batch.group.tolist() == [0, 1]
    assert batch.truncated.tolist() == [False, True]
    assert batch.policy_version.tolist() == [2, 2]


def test_without_reported_log_probs_there_is_no_such_column():
    batch = build_batch([Group(PROMPT, (trajectory(Turn((7,), True)),))])
    assert not batch.has("rollout_log_probs")


def test_each_row_carries_the_score_of_its_greedy_baseline():
    row = trajectory(Turn((7,), True))
    groups = [
        Group(PROMPT, (row, row), baseline=trajectory(Turn((9, 9, 9), True), score=0.25)),
        Group(PROMPT, (row, row), baseline=trajectory(Turn((9,), True), score=-1.0)),
    ]
    batch = build_batch(groups)
    assert batch.greedy_scores.tolist() == [0.25, 0.25, -1.0, -1.0]
    assert batch.input_ids.tolist() == [5, 6, 7] * 4, "nothing is learned from a baseline's tokens"
    assert not build_batch([Group(PROMPT, (row,))]).has("greedy_scores")


def test_a_missing_score_is_named():
    with pytest.raises(ValueError, match=r"without a score \(prompt/sample\): 3/0"):
        build_batch([Group(PROMPT, (trajectory(Turn((7,), True), score=None),))])


def test_heads_of_the_reward_function_are_row_columns():
    rows = tuple(
        Trajectory(i, (Turn((7,), True),), "stop", 0, Score(float(i), {"format": i + 0.5, "other": 9.0}))
        for i in range(2)
    )
    batch = build_batch([Group(PROMPT, rows)], heads=["format", "score"])
    assert batch.rows["score/format"].tolist() == [0.5, 1.5]
    assert batch.rows["score/score"].tolist() == [0.0, 1.0]
    assert "score/other" not in batch.rows
    assert not build_batch([Group(PROMPT, rows)]).has("score/format")


def test_a_head_that_the_reward_function_does_not_return_is_named_with_those_it_does():
    row = Trajectory(4, (Turn((7,), True),), "stop", 0, Score(1.0, {"acc": 1.0}))
    with pytest.raises(LaurelError, match=r"names 'format', .* for row 3, sample 4; it returned score, acc"):
        build_batch([Group(PROMPT, (row,))], heads=["format"])
