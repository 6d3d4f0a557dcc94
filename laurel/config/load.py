"""From a command line to the resolved tree, with everything that is wrong with it at once."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from laurel.config import idle, overrides
from laurel.config.derive import derive
from laurel.config.keys import Leaf, leaf_of, leaves, nearest, sections, show
from laurel.config.overrides import COMMAND_LINE, Assignment
from laurel.config.tree import Config
from laurel.config.values import Unreadable, fit, from_text
from laurel.config.verl import moved, outside
from laurel.types import ConfigError, Problem


@dataclass(frozen=True)
class Loaded:
    """What a run starts from. ``notes`` are lines to be said once; ``given`` are the keys that the user set."""

    config: Config
    notes: tuple[str, ...]
    given: frozenset[str]


@dataclass(frozen=True)
class Reading:
    """What was understood of a command line. ``loaded`` leaves out what ``problems`` name.

    ``suspects`` are the keys that those problems are about, or that a mistyped key may have meant: what further checks
    say of them is only a consequence.
    """

    loaded: Loaded
    problems: tuple[Problem, ...]
    suspects: frozenset[str]


def load(argv: Sequence[str]) -> Loaded:
    """The resolved settings. Raises ConfigError with every problem of the tree and of the overrides."""
    reading = read(argv)
    if reading.problems:
        raise ConfigError(reading.problems)
    return reading.loaded


def read(argv: Sequence[str]) -> Reading:
    """Like ``load``, but hands back the problems beside what is left without them."""
    assignments, problems = overrides.read(argv)
    settings = _Settings(problems)
    for assignment in assignments:
        settings.take(assignment)
    config = settings.validated()
    given = frozenset(settings.values)
    values, derived = derive({path: _at(config, path) for path in leaves()}, given)
    resolved = Config.model_validate(_nested(values), strict=True)
    notes = [*settings.notes, *settings.answers(values), *derived, *idle.notes(resolved, given)]
    loaded = Loaded(resolved, tuple(dict.fromkeys(notes)), given)
    return Reading(loaded, tuple(settings.problems), frozenset(settings.suspects))


class _Settings:
    """Assignments taken one after the other; the last one of a key counts."""

    def __init__(self, problems: Sequence[Problem]):
        self.values: dict[str, Any] = {}
        self.typed: set[str] = set()
        self.notes: list[str] = []
        self.outside: dict[str, outside.Outside] = {}
        self.problems = list(problems)
        self.suspects = {problem.field for problem in problems}

    def take(self, assignment: Assignment) -> None:
        key = moved.new_name(assignment.key) or assignment.key
        if key != assignment.key:
            self.notes.append(f"{assignment.key} is {key} here, and is read as that")
        row = outside.find(key)
        if row is not None:
            if assignment.reset:
                self.outside.pop(key, None)
            else:
                value = _free_value(assignment)
                self.outside[key] = outside.Outside(key, value, row)
            return
        leaf = leaf_of(key)
        if leaf is not None:
            self._reset(key, leaf) if assignment.reset else self._set(key, leaf, assignment)
        elif key in sections():
            self._group(key, assignment)
        else:
            self._unknown(key, assignment)

    def validated(self) -> Config:
        """The tree without the values it refuses; each of those becomes a problem."""
        values = dict(self.values)
        while True:
            try:
                return Config.model_validate(_nested(values), strict=True)
            except ValidationError as error:
                for detail in error.errors():
                    leaf = leaf_of(".".join(str(part) for part in detail["loc"])) or _leaf_at(detail["loc"])
                    self.suspects.add(leaf.path)
                    self.problems.append(Problem(leaf.path, detail["input"], _cure(detail, leaf)))
                    values.pop(leaf.path, None)

    def answers(self, resolved: Mapping[str, Any]) -> list[str]:
        """What is said of keys outside the tree; those that are problems join the others."""
        found = [item.answer(resolved) for item in self.outside.values()]
        self.problems += [answer for answer in found if isinstance(answer, Problem)]
        return [answer for answer in found if isinstance(answer, str)]

    def _set(self, key: str, leaf: Leaf, assignment: Assignment) -> None:
        inside = key.removeprefix(leaf.path).removeprefix(".")
        try:
            annotation = Any if inside else leaf.annotation
            value = from_text(assignment.value, annotation) if assignment.typed else fit(assignment.value, annotation)
        except Unreadable as error:
            self._refuse(key, assignment.value, str(error))
            return
        spelled = moved.SPELLINGS.get(key) or moved.SPELLINGS.get(key.rpartition(".")[2], {})
        if isinstance(value, str) and value in spelled:
            self.notes.append(f"{key}={value} is written {spelled[value]} here, and is read as that")
            value = spelled[value]
        if assignment.typed and key in self.typed:
            self.notes.append(f"{key} is given more than once; the last value counts: {show(value)}")
        if assignment.typed:
            self.typed.add(key)
        before = self.values.get(leaf.path, leaf.default)
        if inside:
            value = _with_entry(before, inside.split("."), value)
        # Files lie over each other entry by entry, in an open dict as in the tree; what is typed replaces the whole
        layered = leaf.open and not assignment.typed and assignment.value is not None
        self.values[leaf.path] = _merged(before, value) if layered else value

    def _reset(self, key: str, leaf: Leaf) -> None:
        if key == leaf.path:
            self.values.pop(key, None)
        elif leaf.path in self.values:
            self.values[leaf.path] = _without_entry(
                self.values[leaf.path], key.removeprefix(leaf.path + ".").split(".")
            )
        self.typed.discard(key)

    def _group(self, key: str, assignment: Assignment) -> None:
        inside = [path for path in leaves() if path.startswith(key + ".")]
        if assignment.reset:
            for path in inside:
                self.values.pop(path, None)
                self.typed.discard(path)
            return
        cure = f"is a group of {len(inside)} settings; set them one by one, such as {inside[0]}=..., or use --config"
        value = _free_value(assignment)
        if value is None and not assignment.typed:
            return  # a group of a file with nothing under it
        if isinstance(value, dict):
            for name, item in value.items():
                self.take(Assignment(f"{key}.{name}", item, typed=False, origin=assignment.origin))
        else:
            self._refuse(key, value, cure)

    def _unknown(self, key: str, assignment: Assignment) -> None:
        close = nearest(key)
        self.suspects.update(close)
        hint = f"did you mean {' or '.join(close)}?" if close else "see `laurel train --keys` for every key"
        where = "" if assignment.origin == COMMAND_LINE else f" (in {assignment.origin})"
        value = None if assignment.reset else _free_value(assignment)
        self._refuse(f"~{key}" if assignment.reset else key, value, f"unknown key{where}; {hint}")

    def _refuse(self, key: str, value: Any, cure: str) -> None:
        self.suspects.add(key)
        self.problems.append(Problem(key, value, cure))


def _free_value(assignment: Assignment) -> Any:
    """A value without a type: what it looks like."""
    if not assignment.typed:
        return fit(assignment.value, Any)
    try:
        return from_text(assignment.value or "null", Any)
    except Unreadable:
        return assignment.value


def _at(config: Config, path: str) -> Any:
    value: Any = config
    for name in path.split("."):
        value = getattr(value, name)
    return value


def _nested(values: Mapping[str, Any]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for path, value in values.items():
        *groups, name = path.split(".")
        place = tree
        for group in groups:
            place = place.setdefault(group, {})
        place[name] = value
    return tree


def _with_entry(table: Any, path: list[str], value: Any) -> Any:
    """``table`` with ``value`` at ``path``; the original is left as it is."""
    table = dict(table) if isinstance(table, dict) else {}
    table[path[0]] = value if len(path) == 1 else _with_entry(table.get(path[0]), path[1:], value)
    return table


def _merged(under: Any, over: Any) -> Any:
    """``over`` laid on ``under``: entries of dicts one by one, anything else replaced."""
    if not isinstance(under, dict) or not isinstance(over, dict):
        return over
    return {**under, **{name: _merged(under.get(name), item) for name, item in over.items()}}


def _without_entry(table: Any, path: list[str]) -> Any:
    if not isinstance(table, dict) or path[0] not in table:
        return table
    table = dict(table)
    if len(path) == 1:
        del table[path[0]]
    else:
        table[path[0]] = _without_entry(table[path[0]], path[1:])
    return table


def _leaf_at(loc: tuple[int | str, ...]) -> Leaf:
    """The setting that an error lies in: the error of a list names an item of it."""
    for end in range(len(loc), 0, -1):
        leaf = leaves().get(".".join(str(part) for part in loc[:end]))
        if leaf is not None:
            return leaf
    raise AssertionError(f"no setting at {loc}")


_OTHER_NAMES = {
    "dr_grpo": "grpo",
    "ppo": "vanilla",
    "gmpo": "geo_mean",
    "otb": "optimal_token_baseline",
    "passk": "grpo_passk",
    "pass_k": "grpo_passk",
    "kl1": "kl",
    "kl2": "mse",
    "kl3": "low_var_kl",
    "seq_mean": "seq_mean_token_mean",
}
"""What else people call a choice; ``-`` written as ``_``."""


def _one_of(value: Any, leaf: Leaf) -> str:
    """The choices of ``leaf``, and the nearest of them: by another usual name, by its beginning, or by its letters."""
    word = str(value).lower().replace("-", "_").replace("++", "_plus_plus")
    plain = {choice.lower().replace("-", "_"): choice for choice in leaf.choices}
    nearest = plain.get(_OTHER_NAMES.get(word, word))
    if nearest is None:
        starts = [choice for name, choice in plain.items() if name.startswith(word) or word.startswith(name)]
        close = difflib.get_close_matches(word, plain, n=1, cutoff=0.4)
        nearest = starts[0] if len(starts) == 1 else plain[close[0]] if close else None
    return f"must be one of {', '.join(leaf.choices)}" + (f"; did you mean {nearest}?" if nearest else "")


def _cure(detail: Mapping[str, Any], leaf: Leaf) -> str:
    """What would be right instead of what pydantic refused."""
    kind, limits = detail["type"], detail.get("ctx", {})
    if detail["input"] is None:
        return f"null is no value of this key; leave it out for the default {show(leaf.default)}"
    words: dict[str, str] = {
        "literal_error": _one_of(detail["input"], leaf),
        "greater_than_equal": f"must be at least {limits.get('ge')}",
        "greater_than": f"must be above {limits.get('gt')}",
        "less_than_equal": f"must be at most {limits.get('le')}",
        "less_than": f"must be below {limits.get('lt')}",
        "int_type": "must be a whole number",
        "int_from_float": "must be a whole number",
        "float_type": "must be a number, such as 0.5 or 1e-6",
        "finite_number": "must be a finite number",
        "bool_type": "must be True or False",
        "string_type": "must be text",
        "list_type": "must be a list, such as [a,b]",
        "tuple_type": "must be a list, such as [0.9,0.999]",
        "missing": f"must have as many values as {show(leaf.default)}",
        "too_long": f"must have as many values as {show(leaf.default)}",
        "dict_type": f"must be a dict, such as {{name: value}}; or set one entry: {leaf.path}.NAME=VALUE",
    }
    return words.get(kind, detail["msg"])
