"""Statistics of the trajectories of one prompt."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from laurel.algos.advantages.rows import Flags, Floats, Ints


@dataclass(frozen=True)
class Groups:
    """Rows of weight above 0, by group; their order in the batch is free. Rows of weight 0 belong to no group.

    Example: groups 7, 3, 7 are numbered 1, 0, 1: ``rows`` (1, 0, 2), ``starts`` (0, 1), ``sizes`` (1, 2).
    """

    rows: Ints  # (K,): counted rows, group after group
    starts: Ints  # (G,): where each group begins in ``rows``
    sizes: Ints  # (G,)
    member: Ints  # (N,): each row's group; 0 for rows that do not count

    @staticmethod
    def of(group: Tensor, counted: Flags) -> Groups:
        """``group`` int64 (N,): rows of one prompt share a number."""
        kept = np.flatnonzero(counted)
        _, number, sizes = np.unique(group.cpu().numpy()[kept], return_inverse=True, return_counts=True)
        member = np.zeros(counted.size, dtype=np.int64)
        member[kept] = number
        return Groups(kept[np.argsort(number, kind="stable")], sizes.cumsum() - sizes, sizes, member)

    @property
    def alone(self) -> Flags:
        """(N,): rows of a group of one."""
        return self.each(self.sizes == 1)

    def each(self, of_group: np.ndarray) -> np.ndarray:
        """(N,): what its group has, for each row; ``of_group`` (G,)."""
        return of_group[self.member] if of_group.size else np.zeros(self.member.size, dtype=of_group.dtype)

    def sums(self, values: Floats) -> Floats:
        """(G,) sums of ``values`` (N,)."""
        return np.add.reduceat(values[self.rows], self.starts) if self.rows.size else np.zeros(0)

    def alike(self, values: Floats) -> Flags:
        """(G,): groups whose rows all have the same value."""
        ordered = values[self.rows]
        if not ordered.size:
            return np.zeros(0, dtype=bool)
        return np.maximum.reduceat(ordered, self.starts) == np.minimum.reduceat(ordered, self.starts)

    def centred(self, values: Floats, *, shares: Floats | None = None) -> Floats:
        """(N,): each value minus its group's mean, weighted by ``shares`` (N,) if given.

        Two results are exact, here and so in every estimator built on it: equal values give 0, and a group of one,
        which has nothing to be compared with, keeps its value (its mean counts as 0), as users of verl know it.

        Example: 1, 2, 6 in one group give -2, -1, 3; with shares 2, 1, 1 the mean is 2.5: -1.5, -0.5, 3.5.
        """
        if shares is None:
            mean = self.sums(values) / self.sizes
        else:
            whole = self.sums(shares)
            mean = self.sums(shares * values) / np.where(whole > 0, whole, 1.0)
        centred = np.where(self.each(self.alike(values)), 0.0, values - self.each(mean))
        return np.where(self.alone, values, centred)

    def stds(self, values: Floats) -> Floats:
        """(G,) standard deviations with Bessel's correction; 0 for a group of one."""
        mean = self.sums(values) / self.sizes
        return np.sqrt(self.sums((values - self.each(mean)) ** 2) / np.maximum(self.sizes - 1, 1))
