"""GSM8K: the number after ``####`` (strict) or the last number of the response (flexible)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from typing import Any, Literal

STRICT = re.compile(r"#### ?(-?\$?-?[0-9][0-9.,]*)")
NUMBER = re.compile(r"-?\$?-?[0-9][0-9.,]*|-?\.[0-9]+")


def compute_score(
    *,
    data_source: str,
    solution_str: str,
    ground_truth: Any,
    extra_info: Mapping[str, Any],
    method: Literal["strict", "flexible"] = "strict",
    score: float = 1.0,
    format_score: float = 0.0,
) -> dict[str, float]:
    """``score`` if the answer found by ``method`` is right, ``format_score`` if there is a wrong one, 0 if there is
    none.

    Extras: acc (1 if right by ``method``), strict, flexible (1 if right by that method). Raises ValueError for an
    unknown method or a ground truth that is no number.
    """
    if method not in ("strict", "flexible"):
        raise ValueError(f"method={method!r} is unknown; use 'strict' or 'flexible'")
    truth = number(str(ground_truth))
    if truth is None:
        raise ValueError(f"ground_truth={ground_truth!r} is no number")
    answers = {"strict": extract_strict(solution_str), "flexible": extract_flexible(solution_str)}
    right = {name: float(answer is not None and number(answer) == truth) for name, answer in answers.items()}
    wrong = format_score if answers[method] is not None else 0.0
    return {"score": score if right[method] else wrong, "acc": right[method], **right}


def extract_strict(text: str) -> str | None:
    """The last number that directly follows ``####``, without ``$`` and commas; None if there is none."""
    found = STRICT.findall(text)
    return _clean(found[-1]) if found else None


def extract_flexible(text: str) -> str | None:
    """The last number anywhere in the text, without ``$`` and commas; None if there is none."""
    found = NUMBER.findall(text)
    return _clean(found[-1]) if found else None


def number(text: str) -> Decimal | None:
    """The value of ``"-1,234.50"`` or ``"$18."``; None if the text is no plain number."""
    try:
        value = Decimal(_clean(text))
    except InvalidOperation:
        return None
    return value if value.is_finite() else None


def _clean(text: str) -> str:
    return text.strip().replace(",", "").replace("$", "").rstrip(".")
