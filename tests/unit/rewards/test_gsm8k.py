from __future__ import annotations

import pytest

from laurel.rewards.gsm8k import compute_score, extract_flexible, extract_strict


def score(text, truth="42", **kwargs):
    return compute_score(data_source="openai/gsm8k", solution_str=text, ground_truth=truth, extra_info={}, **kwargs)


@pytest.mark.parametrize(
    ("text", "strict", "flexible"),
    [
        ("so it is 42.\n#### 42", "42", "42"),
        ("#### 1,234", "1234", "1234"),
        ("#### $1,234.50", "1234.50", "1234.50"),
        ("#### -$7", "-7", "-7"),
        ("#### -7", "-7", "-7"),
        ("#### 42.", "42", "42"),
        ("#### 10\n#### 42", "42", "42"),
        ("#### 42 apples, and 3 pears", "42", "3"),
        ("The answer is 42.", None, "42"),
        ("1 and 2, then 3", None, "3"),
        ("0.5", None, "0.5"),
        ("### 42", None, "42"),
        ("####", None, None),
        ("no number here...", None, None),
        ("", None, None),
    ],
)
def test_extraction(text, strict, flexible):
    assert extract_strict(text) == strict
    assert extract_flexible(text) == flexible


@pytest.mark.parametrize(
    ("text", "truth", "strict", "flexible"),
    [
        ("#### 42", "42", 1.0, 1.0),
        ("#### 42.00", "42", 1.0, 1.0),
        ("#### 1,234", "1234", 1.0, 1.0),
        ("#### 41", "42", 0.0, 0.0),
        ("the answer is 42", "42", 0.0, 1.0),
        ("#### 42, of 50", "42", 1.0, 0.0),
        ("#### 1.2.3", "42", 0.0, 0.0),
        ("#### -42", "42", 0.0, 0.0),
        ("nothing", "42", 0.0, 0.0),
        ("#### 0.5", ".5", 1.0, 1.0),
        ("#### 42", 42, 1.0, 1.0),
    ],
)
def test_scores_both_ways_at_once(text, truth, strict, flexible):
    assert score(text, truth) == {"score": strict, "acc": strict, "strict": strict, "flexible": flexible}
    assert score(text, truth, method="flexible")["score"] == flexible


def test_a_wrong_number_in_the_right_format_can_earn_something():
    assert score("#### 41", format_score=0.1)["score"] == 0.1
    assert score("41", format_score=0.1)["score"] == 0.0
    assert score("#### 42", format_score=0.1, score=2.0)["score"] == 2.0


def test_errors_are_raised_not_scored():
    with pytest.raises(ValueError, match="ground_truth='many' is no number"):
        score("#### 42", "many")
    with pytest.raises(ValueError, match="method='loose'"):
        score("#### 42", method="loose")
