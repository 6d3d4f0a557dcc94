from __future__ import annotations

import pytest

from laurel.rewards.arithmetic import compute_score


def score(text, truth="12", **kwargs):
    return compute_score(
        data_source="laurel/arithmetic", solution_str=text, ground_truth=truth, extra_info={}, **kwargs
    )


@pytest.mark.parametrize(
    ("text", "value", "acc", "form", "flexible"),
    [
        ("12", 1.0, 1.0, 1.0, 1.0),
        (" 12\n", 1.0, 1.0, 1.0, 1.0),
        ("13", 0.1, 0.0, 1.0, 0.0),
        ("The answer is 12.", 0.0, 0.0, 0.0, 1.0),
        ("12 apples", 0.0, 0.0, 0.0, 1.0),
        ("12.", 0.0, 0.0, 0.0, 1.0),
        ("12\n13", 0.0, 0.0, 0.0, 0.0),
        ("", 0.0, 0.0, 0.0, 0.0),
    ],
)
def test_format_and_accuracy(text, value, acc, form, flexible):
    assert score(text) == {"score": value, "acc": acc, "format": form, "strict": acc, "flexible": flexible}


def test_rewards_can_be_set_and_negatives_count():
    assert score("13", format_score=0.0)["score"] == 0.0
    assert score("-3", "-3", score=5.0)["score"] == 5.0


def test_a_ground_truth_that_is_no_number_is_an_error():
    with pytest.raises(ValueError, match="ground_truth='twelve' is no whole number"):
        score("12", "twelve")
