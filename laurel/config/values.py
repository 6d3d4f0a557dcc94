"""Text that a user typed, as a value of a setting's type.

The type decides how text is read, so ``trainer.experiment_name=1`` is the text "1" and ``trainer.nnodes=1`` a number.
What does not fit is handed on as it is: the tree then refuses it with the value in the message.
"""

from __future__ import annotations

import re
from typing import Any, Literal, get_args, get_origin

from laurel.config.keys import optional, plain

NUMBER = re.compile(r"[+-]?(\d+(_\d+)*\.?\d*|\.\d+)([eE][+-]?\d+)?")
NULLS = ("null", "None")
TRUTHS = {"true": True, "false": False}
QUOTES = ("'", '"')


class Unreadable(ValueError):
    """A list or dict that does not parse; the message says what was expected and where."""


class Bare(str):
    """Text without quotes, whose type is still open."""


def from_text(text: str, annotation: Any) -> Any:
    """What ``text`` means for a setting of this type. Raises Unreadable for a broken list or dict."""
    text = text.strip()
    kind = plain(annotation)
    if text in NULLS:
        return _null(kind, annotation)
    if _takes_text(kind):
        return _unquote(text)
    if text[:1] in ("[", "{") or (text[:1] in QUOTES and text[-1:] == text[:1]):
        return fit(_parse(text), annotation)
    return fit(Bare(text), annotation)


def fit(value: Any, annotation: Any) -> Any:
    """A parsed value (from a list, a dict or a YAML file) as this type where it can be, else unchanged."""
    kind = plain(annotation)
    if value is None or (isinstance(value, Bare) and value in NULLS):
        return _null(kind, annotation)
    if get_origin(kind) in (list, tuple):
        return _fit_sequence(value, kind)
    if get_origin(kind) is dict:
        inner = get_args(kind)[1]
        return {str(key): fit(item, inner) for key, item in value.items()} if isinstance(value, dict) else value
    if kind is Any:
        return _settle(value)
    if _takes_text(kind):
        return str(value) if isinstance(value, (str, int, float)) else value
    return _fit_number(scalar(value) if isinstance(value, str) else value, kind)


def scalar(text: str) -> Any:
    """null, a truth value or a number if the text is one, else the text: ``1e-6`` is a float, ``1_000`` an int."""
    if text in NULLS:
        return None
    if text.lower() in TRUTHS:
        return TRUTHS[text.lower()]
    if NUMBER.fullmatch(text):
        return float(text) if any(letter in text for letter in ".eE") else int(text)
    return str(text)


def _null(kind: Any, annotation: Any) -> Any:
    """null for a list or dict that cannot be null is the empty one."""
    if optional(annotation) or kind is Any:
        return None
    return {list: [], dict: {}}.get(get_origin(kind))


def _fit_sequence(value: Any, kind: Any) -> Any:
    inner = get_args(kind)[0]
    if isinstance(value, dict):
        return value
    items = value if isinstance(value, (list, tuple)) else [value]
    fitted = [fit(item, inner) for item in items]
    return tuple(fitted) if get_origin(kind) is tuple else fitted


def _fit_number(value: Any, kind: Any) -> Any:
    if kind is int and isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    return value


def _settle(value: Any) -> Any:
    if isinstance(value, Bare):
        return scalar(value)
    if isinstance(value, dict):
        return {str(key): _settle(item) for key, item in value.items()}
    return [_settle(item) for item in value] if isinstance(value, list) else value


def _takes_text(kind: Any) -> bool:
    return kind is str or get_origin(kind) is Literal


def _unquote(text: str) -> str:
    if len(text) > 1 and text[0] in QUOTES and text[-1] == text[0]:
        return re.sub(r"\\(['\"\\])", r"\1", text[1:-1])
    return text


def _parse(text: str) -> Any:
    reader = _Reader(text)
    value = reader.value(ends="")
    if reader.rest():
        raise Unreadable(f"{reader.rest()!r} is left over after the closing bracket or quote")
    return value


class _Reader:
    """Lists, dicts, quoted and bare words: ``['console', file]``, ``{a: 1, b: [x, y]}``."""

    def __init__(self, text: str):
        self.text, self.at = text, 0

    def rest(self) -> str:
        return self.text[self.at :].strip()

    def value(self, *, ends: str) -> Any:
        self._skip()
        first = self.text[self.at : self.at + 1]
        if first == "[":
            return self._list()
        if first == "{":
            return self._dict()
        if first in QUOTES and first:
            return self._quoted(first)
        return Bare(self._until(ends))

    def _list(self) -> list[Any]:
        self.at += 1
        items: list[Any] = []
        while not self._take("]"):
            items.append(self.value(ends=",]"))
            if not self._take(",") and not self._sees("]"):
                raise Unreadable("a list needs a comma between values and ] at its end")
        return items

    def _dict(self) -> dict[str, Any]:
        self.at += 1
        items: dict[str, Any] = {}
        while not self._take("}"):
            self._skip()
            first = self.text[self.at : self.at + 1]
            key = self._quoted(first) if first and first in QUOTES else self._until(":=,{}")
            if not key or not (self._take(":") or self._take("=")):
                raise Unreadable("a dict is written {name: value, name: value}")
            items[str(key)] = self.value(ends=",}")
            if not self._take(",") and not self._sees("}"):
                raise Unreadable("a dict needs a comma between entries and } at its end")
        return items

    def _quoted(self, quote: str) -> str:
        match = re.compile(rf"{quote}((?:\\.|[^\\{quote}])*){quote}").match(self.text, self.at)
        if match is None:
            raise Unreadable(f"a {quote} is not closed")
        self.at = match.end()
        return re.sub(r"\\(['\"\\])", r"\1", match[1])

    def _until(self, ends: str) -> str:
        start = self.at
        while self.at < len(self.text) and self.text[self.at] not in ends:
            self.at += 1
        return self.text[start : self.at].strip()

    def _skip(self) -> None:
        while self.at < len(self.text) and self.text[self.at].isspace():
            self.at += 1

    def _sees(self, letter: str) -> bool:
        self._skip()
        return self.text.startswith(letter, self.at)

    def _take(self, letter: str) -> bool:
        found = self._sees(letter)
        self.at += found
        return found
