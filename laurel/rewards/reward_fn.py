"""One score per trajectory: the built-in scorer of its data source, or the user's function.

A reward function is called as ``f(data_source=, solution_str=, ground_truth=, extra_info=, **reward_kwargs)`` and
returns a number, or a dict with "score" and further numbers for the logs. Everything else it does is an error that
names the function and the row: a silent zero would train the model on a bug.
"""

from __future__ import annotations

import importlib.util
import math
import sys
from collections.abc import Callable, Mapping
from numbers import Real
from pathlib import Path
from typing import Any

from laurel.config.tree import Config
from laurel.rewards.overlong import OF_THE_MANAGER, overlong_penalty
from laurel.rewards.sources import KNOWN_SOURCES, Scorer, find_scorer
from laurel.types import LaurelError, Prompt, Score

Shape = Callable[[Score, int], Score]


class RewardError(LaurelError):
    """A reward function failed, or returned what is no score."""


class RewardFn:
    """Scores trajectories. ``custom`` is the user's function and its name for messages; None looks up the data
    source. ``shape`` makes the final score of the function's and of the response's length in tokens.
    """

    def __init__(
        self,
        *,
        custom: tuple[str, Scorer] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        shape: Shape | None = None,
    ):
        self._custom = custom
        self._kwargs = dict(kwargs or {})
        self._shape = shape or as_it_is

    def score(self, trajectory_text: str, prompt: Prompt, sample: int = 0, *, length: int) -> Score:
        """The score of one response text, special tokens left out. Thread-safe if the function is.

        ``sample`` is the trajectory's number within its group, for messages; ``length`` counts the response's tokens,
        the end token included. Raises RewardError.
        """
        name, function = self._find(prompt)
        try:
            result = function(
                data_source=prompt.data_source,
                solution_str=trajectory_text,
                ground_truth=prompt.ground_truth,
                extra_info=prompt.extra_info,
                **self._kwargs,
            )
        except Exception as error:
            raise RewardError(f"{_where(name, prompt, sample)} raised {type(error).__name__}: {error}") from error
        return self._shape(_to_score(result, _where(name, prompt, sample)), length)

    def _find(self, prompt: Prompt) -> tuple[str, Scorer]:
        if self._custom is not None:
            return self._custom
        scorer = find_scorer(prompt.data_source)
        if scorer is None:
            raise RewardError(
                f"row {prompt.index}: data_source={prompt.data_source!r} has no reward function; "
                f"use one of {', '.join(KNOWN_SOURCES)}, or set reward.custom_reward_function.path=FILE.py"
            )
        return f"{scorer.__module__}.{scorer.__qualname__}", scorer


def as_it_is(score: Score, length: int) -> Score:
    return score


def _naive(config: Config) -> Shape:
    return as_it_is


def _dapo(config: Config) -> Shape:
    """The over-long penalty, and a plain number counts as accuracy too, which algorithm.filter_groups asks for."""
    penalty = overlong_penalty(config)

    def shape(score: Score, length: int) -> Score:
        named = score if score.extras else Score(score.value, {"acc": score.value})
        return named if penalty is None else penalty.shape(named, length)

    return shape


# The ways to score trajectories, by the names of reward.reward_manager.name.
MANAGERS: dict[str, Callable[[Config], Shape]] = {"naive": _naive, "dapo": _dapo}


def load_reward_fn(config: Config) -> RewardFn:
    """The reward function that the config asks for. Runs the user's file, if one is set. Raises RewardError."""
    custom, shape = config.reward.custom_reward_function, MANAGERS[config.reward.reward_manager.name](config)
    kwargs = function_kwargs(config.reward.reward_kwargs)
    if custom.path is None:
        return RewardFn(kwargs=kwargs, shape=shape)
    function = (f"{custom.path}:{custom.name}", _load_custom(custom.path, custom.name))
    return RewardFn(custom=function, kwargs=kwargs, shape=shape)


def function_kwargs(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """What of reward.reward_kwargs reaches the reward function: all but what the reward manager reads."""
    return {name: value for name, value in kwargs.items() if name not in OF_THE_MANAGER}


def _load_custom(path: str, name: str) -> Scorer:
    file = Path(path).expanduser()
    if not file.is_file():
        raise RewardError(f"reward.custom_reward_function.path={path!r} does not exist; give a Python file")
    module_name = f"laurel_custom_reward_{file.stem}"
    spec = importlib.util.spec_from_file_location(module_name, file)
    if spec is None or spec.loader is None:
        raise RewardError(f"reward.custom_reward_function.path={path!r} is no Python file; its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module  # dataclasses and pickle inside the file look their module up
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise RewardError(
            f"reward.custom_reward_function.path={path!r} raised {type(error).__name__} when imported: {error}"
        ) from error
    function = module.__dict__.get(name)
    if not callable(function):
        raise RewardError(
            f"reward.custom_reward_function.name={name!r} is no function of {path}; define it or name another"
        )
    return function


def _where(name: str, prompt: Prompt, sample: int) -> str:
    return f"reward function {name} on row {prompt.index} (data_source {prompt.data_source!r}, sample {sample})"


def _to_score(result: Any, where: str) -> Score:
    """A number, or a dict with "score" and further numbers, as a Score; anything else is an error."""
    if isinstance(result, Mapping):
        if "score" not in result:
            raise RewardError(f"{where} returned a dict without 'score'; its keys are {list(result)}")
        numbers = {str(key): _number(value, f"{where}, key {key!r},") for key, value in result.items()}
        return Score(numbers.pop("score"), numbers)
    return Score(_number(result, where))


def _number(value: Any, where: str) -> float:
    if hasattr(value, "item") and getattr(value, "ndim", None) == 0:
        value = value.item()  # a zero-dimensional tensor or array is the number it holds
    if not isinstance(value, Real):
        raise RewardError(
            f"{where} returned {value!r} of type {type(value).__name__}; return a number or a dict with 'score'"
        )
    if not math.isfinite(value):
        raise RewardError(f"{where} returned {value}; a score must be finite")
    return float(value)
