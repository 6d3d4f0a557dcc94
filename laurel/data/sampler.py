"""The order of training rows as a pure function of (seed, number consumed), so that a resumed run goes on where it
stopped.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np


class PromptOrder:
    """Every epoch is a permutation of its own of ``count`` rows; a batch may span epochs and no row is ever dropped.

    Without ``shuffle`` every epoch is 0, 1, ..., count - 1.
    """

    def __init__(self, count: int, seed: int, shuffle: bool):
        if count < 1:
            raise ValueError(f"count={count} must be at least 1: there are no rows to order")
        self.count, self.seed, self.shuffle = count, seed, shuffle

    def take(self, consumed: int, n: int) -> list[int]:
        """The next ``n`` row numbers after ``consumed`` rows were taken. ``n`` may be larger than ``count``."""
        if consumed < 0 or n < 0:
            raise ValueError(f"consumed={consumed} and n={n} must not be negative")
        rows: list[int] = []
        while len(rows) < n:
            epoch, start = divmod(consumed + len(rows), self.count)
            rows += self._epoch(epoch)[start : start + n - len(rows)]
        return rows

    def _epoch(self, epoch: int) -> list[int]:
        if not self.shuffle:
            return list(range(self.count))
        return list(_permutation(self.count, self.seed, epoch))


@lru_cache(maxsize=4)
def _permutation(count: int, seed: int, epoch: int) -> tuple[int, ...]:
    # RandomState's stream is frozen by NumPy's policy (NEP 19); a Generator's may change between releases.
    words = np.array([seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF, epoch], dtype=np.uint32)
    return tuple(int(i) for i in np.random.RandomState(words).permutation(count))
