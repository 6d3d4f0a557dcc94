"""What can be wrong with the reward settings, found without running a reward function."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from laurel.config.tree import Config
from laurel.rewards import overlong
from laurel.rewards.reward_fn import function_kwargs
from laurel.rewards.sources import KNOWN_SOURCES, Scorer, find_scorer
from laurel.types import Problem

ARGUMENTS = ("data_source", "solution_str", "ground_truth", "extra_info")
PATH = "reward.custom_reward_function.path"
NAME = "reward.custom_reward_function.name"
KWARGS = "reward.reward_kwargs"


def check(config: Config, sources: Mapping[str, str] | None = None) -> list[Problem]:
    """Problems of the reward settings. ``sources`` maps each data source of the data files to a file that has it."""
    custom, kwargs = config.reward.custom_reward_function, function_kwargs(config.reward.reward_kwargs)
    problems = overlong.check(config)
    if custom.path is not None:
        return problems + _check_custom(custom.path, custom.name, kwargs)
    seen: set[Scorer] = set()
    for source, file in sorted((sources or {}).items()):
        scorer = find_scorer(source)
        if scorer is None:
            problems.append(_unknown_source(config, source, file))
        elif scorer not in seen:
            seen.add(scorer)
            problems += _check_kwargs(scorer, kwargs, source)
    return problems


def _unknown_source(config: Config, source: str, file: str) -> Problem:
    known = ", ".join(KNOWN_SOURCES)
    cure = f"no reward function scores this data source (found in {file}); known are {known}; or set {PATH}=FILE.py"
    return Problem(f"data.reward_fn_key={config.data.reward_fn_key}", source, cure)


def _check_kwargs(scorer: Scorer, kwargs: Mapping[str, Any], source: str) -> list[Problem]:
    known = [name for name in inspect.signature(scorer).parameters if name not in ARGUMENTS]
    return [
        Problem(
            f"{KWARGS}.{key}",
            value,
            f"the reward function of {source} takes no such argument; it takes {', '.join(known)}",
        )
        for key, value in kwargs.items()
        if key not in known
    ]


def _check_custom(path: str, name: str, kwargs: Mapping[str, Any]) -> list[Problem]:
    file = Path(path).expanduser()
    if not file.is_file():
        return [Problem(PATH, path, "the file does not exist; give a Python file that this machine can read")]
    if file.suffix != ".py":
        return [Problem(PATH, path, "the name must end in .py")]
    try:
        tree = ast.parse(file.read_text(encoding="utf-8"), filename=str(file))
    except (SyntaxError, ValueError, OSError) as error:
        return [Problem(PATH, path, f"the file is no valid Python: {error}")]
    functions = {node.name: node for node in tree.body if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))}
    if name in functions:
        return _check_signature(functions[name], path, kwargs)
    if name in _bound_names(tree):
        return []  # an import, an assignment or a class: what it takes is only known by running it
    known = ", ".join(functions) if functions else "none"
    return [Problem(NAME, name, f"{path} defines no such function; its functions are: {known}")]


def _check_signature(
    function: ast.FunctionDef | ast.AsyncFunctionDef, path: str, kwargs: Mapping[str, Any]
) -> list[Problem]:
    call = f"it is called as {function.name}({', '.join(f'{a}=' for a in ARGUMENTS)}, **reward_kwargs)"
    if isinstance(function, ast.AsyncFunctionDef):
        return [Problem(NAME, function.name, f"{path} defines it with async def; write a plain def")]
    arguments = function.args
    positional = [argument.arg for argument in arguments.args]
    named = positional + [argument.arg for argument in arguments.kwonlyargs]
    optional = {*positional[len(positional) - len(arguments.defaults) :]} if arguments.defaults else set()
    optional |= {
        a.arg for a, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if default is not None
    }
    passed = [*ARGUMENTS, *kwargs]
    problems = [
        Problem(NAME, function.name, f"{path}:{function.lineno} needs argument {extra!r}, which nobody passes; {call}")
        for extra in named
        if extra not in passed and extra not in optional
    ]
    problems += [
        Problem(NAME, function.name, f"{path}:{function.lineno} takes {a.arg!r} by position only; {call}")
        for a in arguments.posonlyargs
    ]
    if arguments.kwarg is None:
        problems += [
            Problem(NAME, function.name, f"{path}:{function.lineno} does not take {missing!r}; {call}")
            for missing in passed
            if missing not in named
        ]
    return problems


def _bound_names(tree: ast.Module) -> set[str]:
    """Every name that the file binds at its top level or inside a top-level if, try or with."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            names.update(alias.asname or alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.add(node.name)
    return names
