r"""MATH: the last ``\boxed{...}`` of the response, compared with the ground truth as text and then by math-verify.

math-verify's own time limits use signals and so break outside the main thread, where scoring runs; they are off here,
and ``_is_safe`` keeps from it the expressions on which it could run for ever (towers of powers, large factorials).
"""

from __future__ import annotations

import functools
import logging
import re
from collections.abc import Callable, Mapping
from typing import Any, Literal

from laurel.types import LaurelError

MAX_LENGTH = 400  # characters; a longer answer is compared as text only
BOXED = re.compile(r"\\f?box(?:ed)?\s*(\{|[^\s{}$]+)")
NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")
UNSAFE = re.compile(
    r"\^\s*\{?[^{}]*\^"  # a power in an exponent
    r"|\^\s*\{?\s*-?\d{4,}"  # an exponent of four digits
    r"|\d{4,}\s*\}?\s*\)?\s*!"  # a factorial of four digits
    r"|!\s*\)?\s*!"  # a factorial of a factorial
    r"|[)}]\s*\^\s*\{?\w+\}?\s*(?:\\right)?\s*[)}]\s*\^"  # a power of a power
    r"|\\binom\{?\d{4,}"
    r"|\\(?:int|sum|prod|lim)(?![a-z])"
)
# Parts of LaTeX that say nothing about the value, dropped before texts are compared.
NOISE = re.compile(
    r"\\(?:left|right|displaystyle|text|mathrm|textbf|mbox)(?![a-zA-Z])|\\[,!;: ]|\\%|%|\\\$|\$|\s|\^\s*\{?\\circ\}?"
)


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
    r"""``score`` if the answer found by ``method`` equals the ground truth, ``format_score`` if a wrong one is boxed,
    else 0.

    strict looks at the last ``\boxed{}``; flexible, where nothing is boxed, at the last ``$...$`` or number. Extras:
    acc, strict, flexible. Raises ValueError for an unknown method or an empty ground truth. A response that cannot be
    parsed is wrong.
    """
    if method not in ("strict", "flexible"):
        raise ValueError(f"method={method!r} is unknown; use 'strict' or 'flexible'")
    truth = last_boxed(str(ground_truth)) if ground_truth is not None else None
    truth = truth if truth is not None else str(ground_truth if ground_truth is not None else "").strip()
    if not truth:
        raise ValueError(f"ground_truth={ground_truth!r} is empty")
    boxed = last_boxed(solution_str)
    strict = float(boxed is not None and equal(boxed, truth))
    loose = boxed if boxed is not None else last_expression(solution_str)
    flexible = strict if loose is boxed else float(loose is not None and equal(loose, truth))
    right = strict if method == "strict" else flexible
    wrong = format_score if boxed is not None else 0.0
    return {"score": score if right else wrong, "acc": right, "strict": strict, "flexible": flexible}


def last_boxed(text: str) -> str | None:
    r"""What the last complete ``\boxed{...}`` (or ``\boxed 5``, ``\fbox{...}``) holds; None if there is none."""
    for match in reversed(list(BOXED.finditer(text))):
        if match.group(1) != "{":
            return match.group(1)
        depth, start = 1, match.end()
        for i in range(start, len(text)):
            depth += {"{": 1, "}": -1}.get(text[i], 0)
            if depth == 0:
                return text[start:i].strip()
    return None


def last_expression(text: str) -> str | None:
    """The last ``$...$`` of a text without a box, or else its last number."""
    formulas = re.findall(r"\$([^$]+)\$", text)
    found = formulas or NUMBER.findall(text)
    return found[-1].strip() if found else None


def equal(answer: str, truth: str) -> bool:
    """True if both are the same text, up to LaTeX spacing, or the same value to math-verify."""
    if _normal(answer) == _normal(truth):
        return True
    return _is_safe(answer) and _is_safe(truth) and _verifier()(answer, truth)


def _normal(text: str) -> str:
    text = re.sub(r"\\[dt]frac", r"\\frac", NOISE.sub("", text))
    text = re.sub(r"\\frac(\d)(\d)", r"\\frac{\1}{\2}", text)
    text = re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", text)
    return text.strip("{}.") if re.fullmatch(r"\{?[A-Za-z\s]+\}?\.?", text) else text.rstrip(".")


def _is_safe(text: str) -> bool:
    return len(text) <= MAX_LENGTH and UNSAFE.search(text) is None


@functools.cache
def _verifier() -> Callable[[str, str], bool]:
    """math-verify's comparison of two LaTeX answers, tried once on a known pair so that a broken one does not score
    0.
    """
    try:
        from math_verify import parse, verify
    except ImportError as error:
        raise LaurelError("scoring MATH answers needs math-verify; pip install math-verify") from error
    for name in ("math_verify.parser", "math_verify.grader"):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # says at every start that its time limits are off

    def same(answer: str, truth: str) -> bool:
        gold = parse(f"${truth}$", parsing_timeout=None)
        found = parse(f"${answer}$", parsing_timeout=None)
        return bool(gold and found and verify(gold, found, timeout_seconds=None))

    if not same("0.5", r"\frac{1}{2}") or same("0.5", r"\frac{1}{3}"):
        raise LaurelError(
            r"math-verify does not find 0.5 equal to \frac{1}{2}; reinstall it: pip install 'math-verify[antlr4_13_2]'"
        )
    return same
