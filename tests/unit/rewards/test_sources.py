from __future__ import annotations

import pytest

from laurel.rewards import arithmetic, code, gsm8k, math
from laurel.rewards.sources import KNOWN_SOURCES, find_scorer


@pytest.mark.parametrize(
    ("name", "scorer"),
    [
        ("openai/gsm8k", gsm8k.compute_score),
        ("lighteval/MATH", math.compute_score),
        ("DigitalLearningGmbH/MATH-lighteval", math.compute_score),
        ("HuggingFaceH4/MATH-500", math.compute_score),
        ("math_dapo", math.compute_score),
        ("aime24", math.compute_score),
        ("aime_2025", math.compute_score),
        ("laurel/arithmetic", arithmetic.compute_score),
        ("codecontests", code.compute_score),
        ("mbpp_sanitized", code.compute_score),
        ("openai/gsm8k2", None),
        ("my/AIME", None),
        ("", None),
    ],
)
def test_find_scorer(name, scorer):
    assert find_scorer(name) is scorer


def test_every_known_name_has_a_scorer():
    assert all(find_scorer(name.rstrip("*")) is not None for name in KNOWN_SOURCES)
