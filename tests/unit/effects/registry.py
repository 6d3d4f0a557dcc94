"""Which test observes what a setting does: one entry for every key of laurel/config/tree.py.

A test declares itself with ``@effect(key, ...)`` and runs once for each key, which it gets as ``key``. Through the
``settings`` fixture it loads at least two configurations that differ in that key (conftest.py fails it otherwise), and
asserts that the code which consumes them behaves differently, and how.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

EFFECTS: dict[str, set[str]] = {}


def effect(*keys: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Mark a test as the one that observes ``keys``."""

    def mark(test: Callable[..., None]) -> Callable[..., None]:
        for key in keys:
            EFFECTS.setdefault(key, set()).add(test.__name__)
        return pytest.mark.parametrize("key", keys)(test)

    return mark
