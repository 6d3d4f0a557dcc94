"""Keys outside the tree: what is said of each of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from laurel.config.keys import show
from laurel.config.verl.planned import PLANNED, Planned
from laurel.config.verl.retired import ANY, RETIRED, Retired
from laurel.types import Problem


@dataclass(frozen=True)
class Outside:
    """A key given by the user that lies outside the tree, and the row that knows it."""

    key: str
    value: Any
    row: Retired | Planned

    def answer(self, resolved: Mapping[str, Any]) -> str | Problem:
        """One line why nothing needs it, or the problem. ``resolved`` maps each key of the tree to its value."""
        row = self.row
        if isinstance(row, Planned):
            if row.off is ANY:
                return f"{self.key} has no job here: this version has no {row.what}"
            if any(_same(self.value, value) for value in row.off):
                return f"{self.key}={show(self.value)} is always so: this version has no {row.what}"
            return Problem(self.key, self.value, f"this version of Laurel does not do {row.what}; {row.cure}")
        if row.equals is not None and self.value is not None and self.value != resolved[row.equals]:
            return Problem(
                self.key, self.value, f"must be {row.equals} ({show(resolved[row.equals])}) or be left out: {row.why}"
            )
        if row.only is not ANY and not any(_same(self.value, value) for value in row.only):
            return Problem(self.key, self.value, row.cure)
        return f"{self.key} has no job here: {row.why}"


def find(key: str) -> Retired | Planned | None:
    """The row that knows ``key``: an exact name before a pattern, planned rows in their order before retired ones."""
    rows: tuple[Retired | Planned, ...] = (*PLANNED, *RETIRED)
    exact = next((row for row in rows if key in row.patterns), None)
    return exact or next((row for row in rows if any(fnmatchcase(key, pattern) for pattern in row.patterns)), None)


def _same(value: Any, other: Any) -> bool:
    return value == other and isinstance(value, bool) == isinstance(other, bool)
