"""A try of the reward function: the gold answer must score more than a wrong one."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from laurel.config.tree import Config
from laurel.preflight.doctor.finding import Finding, of_error
from laurel.rewards.reward_fn import RewardError, RewardFn
from laurel.rewards.sources import truth_is_answer
from laurel.types import Prompt

_EMPTY = "```python\npass\n```"
OF_EACH = 2  # rows of each data source
_FORMS = ("{}", "#### {}", r"\boxed{{{}}}", "<answer>{}</answer>")
"""How answers are written: as they are, as GSM8K and MATH want them, and as many functions of users do."""


def custom_name(config: Config) -> str | None:
    """What messages call the user's function; None where Laurel's own score."""
    custom = config.reward.custom_reward_function
    return None if custom.path is None else f"{custom.path}:{custom.name}"


def sampled(prompts: Iterable[Prompt], of_each: int = OF_EACH) -> list[Prompt]:
    """The first rows of each data source."""
    found: dict[str, list[Prompt]] = {}
    for prompt in prompts:
        rows = found.setdefault(prompt.data_source, [])
        if len(rows) < of_each:
            rows.append(prompt)
    return [prompt for rows in found.values() for prompt in rows]


def examine(prompts: Sequence[Prompt], reward: RewardFn, *, custom: str | None) -> list[Finding]:
    """``custom`` names the user's function, None where Laurel's own score. A function of the user may want a form that
    is not known here, so its silence is no error."""
    found: list[Finding] = []
    for source in dict.fromkeys(prompt.data_source for prompt in prompts):
        rows = [prompt for prompt in prompts if prompt.data_source == source]
        try:
            if custom is None and not truth_is_answer(source):
                found += _judge_tested(source, rows[0], reward)
                continue
            rows = [prompt for prompt in rows if not isinstance(prompt.ground_truth, Mapping)]  # no answer to try
            scores = [
                (best(reward, prompt, gold(prompt.ground_truth)), best(reward, prompt, wrong(prompt.ground_truth)))
                for prompt in rows
            ]
        except RewardError as error:
            found.append(of_error("reward", "", error, "mend the function, or the rows that it cannot score"))
            continue
        found += _judge(source, rows, scores, custom)
    return found


def _judge(
    source: str, rows: Sequence[Prompt], scores: Sequence[tuple[float, float]], custom: str | None
) -> list[Finding]:
    bad = [(row, *pair) for row, pair in zip(rows, scores, strict=True) if pair[0] <= pair[1]]
    if not bad or (custom and len(bad) < len(rows)):
        return []
    row, right, false = bad[0]
    what = (
        f"data source {source}, row {row.index}: the gold answer {_short(row.ground_truth)} scores {right:g}, "
        f"a wrong one {false:g}"
    )
    if custom:
        cure = (
            f"was tried as {', '.join(form.format('ANSWER') for form in _FORMS)}; if {custom} wants another form all "
            "is well, else mend it"
        )
        return [Finding("reward", "warning", "", what, cure)]
    cure = "correct the rows' reward_model.ground_truth, or reward.reward_kwargs"
    return [Finding("reward", "error", "", what, cure)]


def _judge_tested(source: str, row: Prompt, reward: RewardFn) -> list[Finding]:
    """Where the ground truth is tests of programs: they can be run at all, and a program that does nothing fails."""
    score = reward.score(_EMPTY, row, length=1).value
    if score <= 0:
        return []
    what = f"data source {source}, row {row.index}: a program that does nothing scores {score:g}"
    cure = "look at the tests in the rows' reward_model.ground_truth; some programs may rightly do nothing"
    return [Finding("reward", "warning", "", what, cure)]


def best(reward: RewardFn, prompt: Prompt, answer: str) -> float:
    """The most that ``answer`` scores in any form. Raises RewardError."""
    return max(reward.score(form.format(answer), prompt, length=1).value for form in _FORMS)


def gold(truth: Any) -> str:
    if isinstance(truth, str):
        return truth
    if isinstance(truth, (list, tuple)) and truth:
        return gold(truth[0])
    return json.dumps(truth, default=str)


def wrong(truth: Any) -> str:
    """As long as the gold answer and written with the same kinds of letters, so that nothing but its value differs."""
    digits = str.maketrans("0123456789", "1234567892")
    text = gold(truth)
    changed = text.translate(digits)
    if changed != text:
        return changed
    letters = {ord(letter): ord("z") for letter in "abcdefghijklmnopqrstuvwxy"} | {ord("z"): ord("q")}
    return text.translate(letters | {number - 32: to - 32 for number, to in letters.items()})


def _short(truth: Any) -> str:
    text = repr(truth)
    return text if len(text) <= 60 else f"{text[:57]}..."
