import pytest

from laurel.batch.build import build_batch
from laurel.types import Group, Prompt, Score, Trajectory, Turn

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


def test_a_missing_score_is_named():
    with pytest.raises(ValueError, match=r"without a score \(prompt/sample\): 3/0"):
        build_batch([Group(PROMPT, (trajectory(Turn((7,), True), score=None),))])
