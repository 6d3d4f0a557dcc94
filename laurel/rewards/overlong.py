"""The over-long penalty of DAPO: a response that nears the length limit loses reward, the more the nearer.

A response that the limit cuts off has a noisy score, since its reasoning may have been right; a penalty that grows over
the last tokens before the limit teaches the model to end in time (DAPO, arXiv:2503.14476, section 3.4).
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from laurel.config.section import NonNegative, Positive, Section
from laurel.config.tree import Config
from laurel.types import Problem, Score

KWARGS = "reward.reward_kwargs"
BUFFER = "overlong_buffer_cfg"
LONGEST = "max_resp_len"
OF_THE_MANAGER = (BUFFER, LONGEST)
"""Entries of reward.reward_kwargs that are the reward manager's and do not reach the reward function."""
BUFFERS = 5
"""Buffers in the longest response, where none is given: DAPO's is 4096 of 20480 tokens."""


class OverlongBuffer(Section):
    """reward.reward_kwargs.overlong_buffer_cfg."""

    enable: bool = False
    """Take the penalty off the score."""
    len: Positive | None = None
    """Tokens before the longest response over which the penalty grows; null is a fifth of that response."""
    penalty_factor: NonNegative = 1.0
    """Penalty of a response of full length, in units of the score."""
    log: bool = False
    """Report the penalty of each response (overlong_reward) and whether there is one (overlong) beside its score."""


class OverlongSettings(Section):
    """What the reward manager reads of reward.reward_kwargs."""

    overlong_buffer_cfg: OverlongBuffer = OverlongBuffer()
    max_resp_len: Positive | None = None
    """Longest response, in tokens; null is data.max_response_length."""


@dataclass(frozen=True)
class OverlongPenalty:
    """``longest`` and ``buffer`` in tokens; ``factor`` in units of the score. ``log`` adds two numbers to the extras.

    Equation 13 with L_max = longest, L_cache = buffer and the penalty 1 scaled by factor::

        0                                        if |y| <= L_max - L_cache
        ((L_max - L_cache) - |y|) / L_cache      if L_max - L_cache < |y| <= L_max
        -1                                       if L_max < |y|

    Example: longest 20, buffer 4, factor 2: lengths 16, 17, 20 and 25 get 0, -0.5, -2 and -2.
    """

    longest: int
    buffer: int
    factor: float
    log: bool = False

    def of(self, length: int) -> float:
        """What a response of ``length`` tokens, its end token included, loses: at most 0."""
        over = length - (self.longest - self.buffer)
        return -self.factor * min(over / self.buffer, 1.0) if over > 0 else 0.0

    def shape(self, score: Score, length: int) -> Score:
        """``score`` with the penalty added to its value; the raw one stays among the extras as ``score``."""
        penalty = self.of(length)
        extras = {**score.extras, "score": score.value}
        if self.log:
            extras |= {"overlong_reward": penalty, "overlong": float(penalty < 0)}
        return Score(score.value + penalty, extras)


def overlong_penalty(config: Config) -> OverlongPenalty | None:
    """The penalty that reward.reward_kwargs.overlong_buffer_cfg asks for; None if it is off. ``check`` has passed."""
    settings = _settings(config)
    buffer, longest = settings.overlong_buffer_cfg, settings.max_resp_len or config.data.max_response_length
    if not buffer.enable:
        return None
    return OverlongPenalty(
        longest=longest,
        buffer=buffer.len or max(1, longest // BUFFERS),
        factor=buffer.penalty_factor,
        log=buffer.log,
    )


def check(config: Config) -> list[Problem]:
    """What is wrong with overlong_buffer_cfg and max_resp_len."""
    try:
        settings = _settings(config)
    except ValidationError as error:
        return [_problem(detail) for detail in error.errors()]
    buffer, limit = settings.overlong_buffer_cfg, config.data.max_response_length
    problems: list[Problem] = []
    longest = settings.max_resp_len or limit
    if longest > limit:
        cure = f"is more than data.max_response_length={limit}, where responses end; leave it out, or lower it"
        problems.append(Problem(f"{KWARGS}.{LONGEST}", longest, cure))
    manager = config.reward.reward_manager.name
    if buffer.enable and manager != "dapo":
        cure = f"the reward manager {manager} has no over-long penalty; set reward.reward_manager.name=dapo"
        problems.append(Problem(f"{KWARGS}.{BUFFER}.enable", True, cure))
    if buffer.enable and (buffer.len or 1) > longest:
        cure = f"is more than the longest response, {longest} tokens; use {max(1, longest // BUFFERS)}, or leave it out"
        problems.append(Problem(f"{KWARGS}.{BUFFER}.len", buffer.len, cure))
    return problems


def _settings(config: Config) -> OverlongSettings:
    """Raises ValidationError. null is the same as left out."""
    given = {name: value for name, value in config.reward.reward_kwargs.items() if name in OF_THE_MANAGER}
    return OverlongSettings.model_validate(_without_nulls(given), strict=True)


def _without_nulls(value: Any) -> Any:
    if not isinstance(value, Mapping):
        return value
    return {name: _without_nulls(item) for name, item in value.items() if item is not None}


def _problem(detail: Mapping[str, Any]) -> Problem:
    """What pydantic refused, with what would be right."""
    known = tuple(OverlongBuffer.model_fields)
    name = str(detail["loc"][-1])
    close = difflib.get_close_matches(name, known, n=1)
    cures = {
        "extra_forbidden": f"unknown key; {f'did you mean {close[0]}?' if close else 'known are ' + ', '.join(known)}",
        "enable": "must be True or False",
        "log": "must be True or False",
        "len": "must be a whole number of tokens, at least 1; null is a fifth of the longest response",
        "penalty_factor": "must be a number of at least 0, in units of the score, such as 1.0",
        LONGEST: "must be a whole number of tokens, at least 1; null is data.max_response_length",
        BUFFER: f"must be a group of {', '.join(known)}; set them one by one: {KWARGS}.{BUFFER}.enable=True",
    }
    cure = cures["extra_forbidden" if detail["type"] == "extra_forbidden" else name]
    return Problem(".".join([KWARGS, *map(str, detail["loc"])]), detail["input"], cure)
