"""Which built-in function scores which data source. Importing this file imports neither torch nor math-verify."""

from __future__ import annotations

from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import Any

from laurel.rewards import arithmetic, code, gsm8k, math

Scorer = Callable[..., Any]

# Names as data sets carry them; ``*`` stands for any ending. The first match counts.
SOURCES: dict[str, Scorer] = {
    "openai/gsm8k": gsm8k.compute_score,
    "lighteval/MATH": math.compute_score,
    "DigitalLearningGmbH/MATH-lighteval": math.compute_score,
    "HuggingFaceH4/MATH-500": math.compute_score,
    "EleutherAI/hendrycks_math": math.compute_score,
    "math": math.compute_score,
    "math_dapo*": math.compute_score,
    "aime*": math.compute_score,
    "codecontests": code.compute_score,
    "apps": code.compute_score,
    "codeforces": code.compute_score,
    "taco": code.compute_score,
    "mbpp*": code.compute_score,
    "laurel/code": code.compute_score,
    "laurel/arithmetic": arithmetic.compute_score,
}
KNOWN_SOURCES = tuple(SOURCES)


def find_scorer(data_source: str) -> Scorer | None:
    """The built-in scorer of a data source; None if nobody scores it."""
    for pattern, scorer in SOURCES.items():
        if fnmatchcase(data_source, pattern):
            return scorer
    return None


def truth_is_answer(data_source: str) -> bool:
    """Whether the ground truth of a data source is an answer that scores, and not tests of one."""
    return find_scorer(data_source) is not code.compute_score
