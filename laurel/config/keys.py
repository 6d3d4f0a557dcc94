"""The keys of the tree: each dotted path with its type, default and sentence, and those nearest to a typing error."""

from __future__ import annotations

import difflib
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from laurel.config.tree import Config, Section


@dataclass(frozen=True)
class Leaf:
    """One setting. ``annotation`` is its type as tree.py writes it, without limits; ``open`` marks a free dict."""

    path: str
    annotation: Any
    default: Any
    sentence: str

    @property
    def open(self) -> bool:
        return get_origin(plain(self.annotation)) is dict

    @property
    def choices(self) -> tuple[str, ...]:
        kind = plain(self.annotation)
        if get_origin(kind) is list:
            kind = plain(get_args(kind)[0])
        return get_args(kind) if get_origin(kind) is Literal else ()


def plain(annotation: Any) -> Any:
    """The type without ``Annotated`` limits and without ``| None``: ``Positive | None`` is ``int``."""
    while True:
        if get_origin(annotation) is Annotated:
            annotation = get_args(annotation)[0]
        elif get_origin(annotation) in (Union, types.UnionType):
            annotation = next(kind for kind in get_args(annotation) if kind is not type(None))
        else:
            return annotation


def optional(annotation: Any) -> bool:
    """Whether null is a value of this type."""
    return get_origin(annotation) in (Union, types.UnionType) and type(None) in get_args(annotation)


@cache
def leaves() -> dict[str, Leaf]:
    """Every setting by its dotted path, in the order of tree.py."""
    return {leaf.path: leaf for leaf in _walk(Config(), "")}


@cache
def sections() -> frozenset[str]:
    """Every path that groups settings, such as ``critic.optim``."""
    return frozenset(path.rpartition(".")[0][:end] for path in leaves() for end in _ends(path.rpartition(".")[0]))


def leaf_of(path: str) -> Leaf | None:
    """The setting that ``path`` names or lies in: ``reward.reward_kwargs.x`` lies in the open reward.reward_kwargs."""
    known = leaves()
    if path in known:
        return known[path]
    parts = path.split(".")
    for end in range(len(parts) - 1, 0, -1):
        leaf = known.get(".".join(parts[:end]))
        if leaf is not None:
            return leaf if leaf.open else None
    return None


def nearest(path: str, limit: int = 3) -> list[str]:
    """Known keys that someone who typed ``path`` may have meant, the likeliest first.

    Examples: ``optim.lr`` (a part left out), ``trainer.nnode`` (a letter), ``trainer.train_batch_size`` (wrong group).
    """
    known = list(leaves())
    suffixed = [key for key in known if key.endswith("." + path)]
    if suffixed:
        return suffixed[:limit]
    last = path.rpartition(".")[2]
    close = difflib.get_close_matches(path, known, n=limit, cutoff=0.85)
    same_name = sorted((key for key in known if key.rpartition(".")[2] == last), key=lambda key: -_likeness(path, key))
    if same_name:
        return list(dict.fromkeys(same_name + close))[:limit]
    if close:
        return close[:1]
    names = difflib.get_close_matches(last, {key.rpartition(".")[2] for key in known}, n=limit, cutoff=0.75)
    alike = [key for name in names for key in known if key.rpartition(".")[2] == name]
    return sorted(alike, key=lambda key: -_likeness(path, key))[:limit]


def search(pattern: str) -> list[Leaf]:
    """Settings whose path or sentence contains ``pattern``, in any case; those with it in the path first."""
    wanted = pattern.lower()
    in_path = [leaf for leaf in leaves().values() if wanted in leaf.path.lower()]
    return in_path + [leaf for leaf in leaves().values() if wanted in leaf.sentence.lower() and leaf not in in_path]


def show(value: Any) -> str:
    """A value as one would type it on the command line: ``null``, ``True``, ``[console,file]``."""
    if value is None:
        return "null"
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(show(item) for item in value) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {show(item)}" for key, item in value.items()) + "}"
    return str(value)


def _likeness(a: str, b: str) -> float:
    return difflib.SequenceMatcher(None, a, b).ratio()


def _ends(path: str) -> list[int]:
    return [index for index, letter in enumerate(path) if letter == "."] + ([len(path)] if path else [])


def _walk(section: Section, prefix: str) -> Iterator[Leaf]:
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        if isinstance(value, Section):
            yield from _walk(value, f"{prefix}{name}.")
        else:
            sentence = " ".join((field.description or "").split())
            yield Leaf(prefix + name, field.annotation, value, sentence)


def value_of(config: Config, path: str) -> Any:
    """The value of a setting by its dotted path."""
    value: Any = config
    for name in path.split("."):
        value = getattr(value, name)
    return value


def replaced(config: Config, values: Mapping[str, Any]) -> Config:
    """``config`` with other values of some settings, by dotted path."""
    for path, value in values.items():
        config = _replaced(config, path.split("."), value)
    return config


def _replaced(section: Any, names: Sequence[str], value: Any) -> Any:
    first, *rest = names
    return section.model_copy(update={first: _replaced(getattr(section, first), rest, value) if rest else value})
