"""The command line and the files under it, as a list of assignments in the order in which they count.

Forms: ``key=value``, ``+key=value`` (the same), ``~key`` (back to the default), ``--config FILE.yaml``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from laurel.config.keys import leaves
from laurel.types import Problem

COMMAND_LINE = "command line"
KEY = re.compile(r"[A-Za-z_][\w-]*(\.[\w-]+)*")
INTERPOLATION = re.compile(r"\$\{[A-Za-z_][\w.:,/ -]*\}")
FORMS = "write key=value, +key=value, ~key or --config FILE.yaml"


@dataclass(frozen=True)
class Assignment:
    """One setting as given. ``typed`` is text of the command line, still without a type; else a value of a file."""

    key: str
    value: Any
    typed: bool
    reset: bool = False
    origin: str = COMMAND_LINE


class _FileLoader(yaml.SafeLoader):
    """YAML, with ``1e-6`` a number as people mean it (YAML 1.1 asks for ``1.0e-6``)."""


_FileLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?\d[\d_]*(\.\d*)?[eE][-+]?\d+$"), list("-+0123456789")
)


def read(argv: Sequence[str]) -> tuple[list[Assignment], list[Problem]]:
    """Assignments of ``argv``, those of its ``--config`` files first, and what could not be read."""
    files: list[str] = []
    words: list[Assignment] = []
    problems: list[Problem] = []
    rest = iter(argv)
    for word in rest:
        if not word.strip():
            continue
        if word == "--config":
            files.append(next(rest, ""))
        elif word.startswith("--config="):
            files.append(word.partition("=")[2])
        else:
            found = _word(word)
            if isinstance(found, Problem):
                problems.append(found)
            else:
                words.append(found)
    under: list[Assignment] = []
    for file in files:
        try:
            under += read_file(file)
        except (OSError, ValueError, yaml.YAMLError) as error:
            problems.append(Problem("--config", file, " ".join(str(error).split())))
    return under + words, problems


def read_file(file: str) -> list[Assignment]:
    """Assignments of a YAML file: nested groups, dotted keys, or both. Raises OSError, ValueError, yaml.YAMLError."""
    if not file:
        raise ValueError("needs the name of a YAML file: --config FILE.yaml")
    path = Path(file).expanduser()
    if not path.is_file():
        raise ValueError("the file does not exist; give a YAML file with the settings")
    content = yaml.load(path.read_text(encoding="utf-8"), Loader=_FileLoader)
    if content is None:
        return []
    if not isinstance(content, dict):
        raise ValueError("the file must hold groups of settings, such as 'trainer:' with 'nnodes: 2' under it")
    return list(_flatten(content, "", file))


def _flatten(group: dict[Any, Any], prefix: str, file: str) -> Iterator[Assignment]:
    open_keys = {path for path, leaf in leaves().items() if leaf.open}
    for name, value in group.items():
        key = f"{prefix}{name}"
        inside_open = any(key == path or key.startswith(path + ".") for path in open_keys)
        if isinstance(value, dict) and not inside_open:
            yield from _flatten(value, key + ".", file)
        else:
            yield Assignment(key, value, typed=False, origin=file)


def _word(word: str) -> Assignment | Problem:
    if word.startswith("-"):
        return Problem(COMMAND_LINE, word, _option_cure(word))
    key, equals, value = word.partition("=")
    reset = key.startswith("~")
    key = key.removeprefix("~") if reset else key.lstrip("+")
    if not KEY.fullmatch(key):
        if key.startswith(("@", "hydra/")) or "@" in key or "/" in key.partition(".")[0]:
            return Problem(COMMAND_LINE, word, f"is no setting (Hydra's config groups have no job here); {FORMS}")
        return Problem(COMMAND_LINE, word, f"is no setting; {FORMS}")
    if reset:
        return Assignment(key, None, typed=True, reset=True)
    if not equals:
        return Problem(COMMAND_LINE, word, f"has no '='; {FORMS}, without spaces around '='")
    if not value.strip():
        return Problem(
            key, value, "has no value (an unset shell variable?); write null for none, '\"\"' for empty text"
        )
    if INTERPOLATION.search(value):
        return Problem(key, value, 'is not filled in here; write the value itself, or let the shell do it: "$NAME"')
    return Assignment(key, value, typed=True)


def _option_cure(word: str) -> str:
    name, _, value = word.lstrip("-").partition("=")
    if name in ("config-path", "config-name", "config-dir", "cp", "cn", "cd"):
        return "Hydra's config files are not read; put the settings in a YAML file and give --config FILE.yaml"
    if name in ("multirun", "m"):
        return "sweeps are not built in; run the command once per value, each with its own trainer.experiment_name"
    if name in ("cfg", "c", "info", "resolve"):
        return "give --dry-run to see the resolved settings and the plan"
    if "." in name:
        return f"settings are written without dashes: {name}={value or 'VALUE'}"
    return f"is no option of this command; {FORMS}; --help lists the options"
