"""Sums over the sampled tokens of packed rows, scans along them, and spreading back to tokens.

On the CPU and in NumPy: its ``reduceat`` adds float32 in float64 without a copy, its ``repeat`` and its masks are about
ten times as fast as torch's there. Sampled tokens come in runs (a response, or the turns between tool answers), so what
is the same for a whole row is worked out per run, and no tensor of row numbers is made.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

_BLOCK = 32  # tokens that a scan solves at once


@dataclass(frozen=True)
class SampledTokens:
    """The tokens that count, row by row: those that the policy sampled, in rows whose weight is above 0.

    A run is a stretch of neighbouring tokens of one row that are all sampled, or all not. Below, "packed" arrays (M,)
    hold the M counted tokens of all rows, end to end.

    Example: response_mask F T T F | F T, rows of weight 1 and 0: runs begin at 0, 1, 3, 4 and 5, of which only the
    second is sampled, and ``counts`` is (2, 0).
    """

    mask: Flags  # (T,): sampled; rows of weight 0 still included
    row_lengths: Ints  # (N,): tokens of each row, prompt included
    counted: Flags  # (N,): rows of weight above 0
    starts: Ints  # (S,): first token of each run
    lengths: Ints  # (S,): tokens of each run
    row: Ints  # (S,): its row
    sampled: Flags  # (S,): whether its tokens count
    counts: Ints  # (N,): counted tokens of each row

    @staticmethod
    def of(response_mask: Tensor, cu_seqlens: Tensor, weight: Tensor) -> SampledTokens:
        """``response_mask`` bool (T,), ``cu_seqlens`` int64 (N + 1,) where rows begin, ``weight`` (N,)."""
        flags, ends, counted = response_mask.cpu().numpy(), cu_seqlens.cpu().numpy(), weight.cpu().numpy() > 0
        starts = np.union1d(np.flatnonzero(flags[1:] != flags[:-1]) + 1, ends)
        starts = starts[starts < flags.size]
        row = np.searchsorted(ends, starts, side="right") - 1
        lengths = np.diff(starts, append=flags.size)
        sampled = flags[starts] & counted[row]
        counts = np.zeros(counted.size, dtype=np.int64)
        np.add.at(counts, row[sampled], lengths[sampled])
        return SampledTokens(flags, np.diff(ends), counted, starts, lengths, row, sampled, counts)

    @property
    def firsts(self) -> Ints:
        """(N,): where each row begins in a packed array."""
        return self.counts.cumsum() - self.counts

    def row_sums(self, values: Tensor) -> Floats:
        """(N,) sums of ``values`` (T,) over each row's counted tokens. Other tokens are not read, even if NaN."""
        if not self.starts.size:
            return np.zeros(self.counts.size)
        with np.errstate(invalid="ignore"):  # what lies in runs that do not count is anything
            of_run = np.add.reduceat(values.cpu().numpy(), self.starts, dtype=np.float64)
        sums: Floats = np.zeros(self.counts.size)
        np.add.at(sums, self.row[self.sampled], of_run[self.sampled])
        return sums

    def spread(self, per_row: Floats) -> Tensor:
        """(T,) float32: each counted token gets its row's number, all others 0."""
        of_run = np.zeros(self.starts.size, dtype=np.float32)
        of_run[self.sampled] = per_row[self.row[self.sampled]]
        return torch.from_numpy(np.repeat(of_run, self.lengths))

    def pack(self, values: Tensor) -> Floats:
        """(M,): ``values`` (T,) of the counted tokens."""
        return values.cpu().numpy()[self._chosen].astype(np.float64)

    def unpack(self, packed: Floats) -> Tensor:
        """(T,) float32 from a packed array, 0 at other tokens."""
        values = np.zeros(self.mask.size, dtype=np.float32)
        values[self._chosen] = packed
        return torch.from_numpy(values)

    @property
    def _chosen(self) -> Flags:
        return self.mask if self.counted.all() else self.mask & np.repeat(self.counted, self.row_lengths)


def refuse_nan(name: str, per_row: Floats, counted: Flags) -> None:
    """One rule for every estimator: a number that is NaN or infinite is an error that names its rows. (A row's sum is
    finite exactly if all its numbers are.)"""
    broken = np.flatnonzero(counted & ~np.isfinite(per_row))
    if broken.size:
        raise ValueError(f"{name} of rows {broken[:8].tolist()} are NaN or infinite; advantages need finite numbers")


def discounted_suffix_sums(values: Floats, counts: Ints, factor: float) -> Floats:
    """(M,): ``s_t = x_t + factor * s_(t+1)`` within each row; packed ``values`` (M,), tokens of each row ``counts``.

    Blocks of 32 tokens are solved by one triangular matrix, and what enters a block from behind is the same scan over
    blocks with ``factor ** 32``: time grows with M alone, and no number of one row touches another row's.

    Example: one row 1, 2, 3 and factor 0.5 give 2.75, 3.5, 3.
    """
    if values.size == 0 or counts.max() <= 1:
        return values.copy()
    blocks = -(-counts // _BLOCK)  # rows are filled up to whole blocks with zeros behind their end
    inside = np.repeat(np.tile([True, False], counts.size), np.stack([counts, blocks * _BLOCK - counts], 1).ravel())
    filled = np.zeros(inside.size)
    filled[inside] = values
    table = filled.reshape(-1, _BLOCK)
    powers = float(factor) ** np.arange(_BLOCK)
    entering = discounted_suffix_sums(table @ powers, blocks, factor**_BLOCK)  # of each block's first token
    has_next = np.ones(entering.size, dtype=bool)
    has_next[(blocks.cumsum() - 1)[blocks > 0]] = False
    table[:-1, -1] += factor * np.where(has_next[:-1], entering[1:], 0.0)
    distance = np.arange(_BLOCK)[:, None] - np.arange(_BLOCK)[None, :]
    weights = np.where(distance >= 0, float(factor) ** distance.clip(min=0), 0.0)
    return (table @ weights).ravel()[inside]


def whiten(values: Floats, counts: Floats | Ints | None = None, eps: float = 1e-8) -> Floats:
    """``(x - mean) / sqrt(var + eps)``, where value i stands for ``counts[i]`` equal tokens (1 if not given).

    ``var`` has Bessel's correction, as PPO users know it. Fewer than two tokens, or equal ones, give 0.

    Example: 1, 2, 3 have mean 2 and variance 1, so they become -1, 0, 1.
    """
    total = values.size if counts is None else counts.sum()
    if total < 2:
        return np.zeros_like(values)
    mean = values.mean() if counts is None else (counts * values).sum() / total
    centred = values - mean
    squares = centred @ centred if counts is None else (counts * centred) @ centred
    return centred / np.sqrt(squares / (total - 1) + eps)
