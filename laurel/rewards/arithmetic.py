"""Arithmetic: the response is one whole number and nothing else (format), and it is the right one (accuracy)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from laurel.rewards.gsm8k import extract_flexible, number

ONE_NUMBER = re.compile(r"\s*(-?\d+)\s*")


def compute_score(
    *,
    data_source: str,
    solution_str: str,
    ground_truth: Any,
    extra_info: Mapping[str, Any],
    score: float = 1.0,
    format_score: float = 0.1,
) -> dict[str, float]:
    """``score`` for the right number alone, ``format_score`` for another number alone, 0 for anything else.

    Extras: format (1 if the response is one number), acc and strict (1 if that number is right), flexible (1 if the
    last number of any response is right). Raises ValueError for a ground truth that is no whole number.
    """
    if not re.fullmatch(r"-?\d+", str(ground_truth)):
        raise ValueError(f"ground_truth={ground_truth!r} is no whole number")
    truth = int(ground_truth)
    alone = ONE_NUMBER.fullmatch(solution_str)
    last = extract_flexible(solution_str)
    right = float(alone is not None and int(alone.group(1)) == truth)
    return {
        "score": score if right else format_score if alone else 0.0,
        "acc": right,
        "format": float(alone is not None),
        "strict": right,
        "flexible": float(last is not None and number(last) == truth),
    }
