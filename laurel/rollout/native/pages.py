"""Which pages of the cache are free, and who holds the others."""

from __future__ import annotations

from collections.abc import Iterable


class PagePool:
    """Pages 1 to ``pages`` - 1. A page that several sequences share is free again when the last lets it go."""

    def __init__(self, pages: int):
        self._free = list(range(pages - 1, 0, -1))
        self._holders = [0] * pages

    @property
    def free(self) -> int:
        return len(self._free)

    def take(self, count: int) -> list[int]:
        """So many pages, each with one holder. The caller has looked whether they are there."""
        taken = [self._free.pop() for _ in range(count)]
        for page in taken:
            self._holders[page] = 1
        return taken

    def share(self, pages: Iterable[int]) -> None:
        """One more holder for each."""
        for page in pages:
            self._holders[page] += 1

    def release(self, pages: Iterable[int]) -> None:
        """One holder less for each."""
        for page in pages:
            self._holders[page] -= 1
            if not self._holders[page]:
                self._free.append(page)
