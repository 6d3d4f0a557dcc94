"""Every policy loss and aggregation once more, slow and in plain float64 numbers: one row, one token after the other.

Written from the papers' formulas, without laurel/algos. ``log_probs`` carry the gradient; ``frozen`` are the same
numbers where a formula stops the gradient, so a difference quotient in ``log_probs`` alone is the gradient meant.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np


@dataclass(frozen=True)
class Row:
    """The sampled tokens of one row, in order."""

    log_probs: np.ndarray
    old: np.ndarray
    advantages: np.ndarray
    weight: float = 1.0
    chosen: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=bool))
    importance: np.ndarray = field(default_factory=lambda: np.zeros(0))

    def __len__(self) -> int:
        return len(self.log_probs)


def clip(x: float, low: float, high: float) -> float:
    return min(max(x, low), high)


def bounded(x: float) -> float:
    return clip(x, -20.0, 20.0)


def ratio(row: Row, t: int, log_probs: np.ndarray) -> float:
    return math.exp(bounded(log_probs[t] - row.old[t]))


def clipped(ratio: float, a: float, low: float, high: float) -> float:
    return max(-a * ratio, -a * clip(ratio, 1 - low, 1 + high))


def vanilla(row, lp, frozen, *, low, high, c):
    losses = []
    for t in range(len(row)):
        a, loss = row.advantages[t], clipped(ratio(row, t, lp), row.advantages[t], low, high)
        losses.append(min(loss, -a * c) if a < 0 else loss)
    return losses


def gspo(row, lp, frozen, *, low, high):
    n = len(row)
    s = math.exp(bounded(sum(frozen[t] - row.old[t] for t in range(n)) / n))
    return [clipped(s * math.exp(lp[t] - frozen[t]), row.advantages[t], low, high) for t in range(n)]


def gpg(row, lp, frozen):
    return [-row.advantages[t] * lp[t] for t in range(len(row))]


def clip_cov(row, lp, frozen, *, low, high):
    return [0.0 if row.chosen[t] else clipped(ratio(row, t, lp), row.advantages[t], low, high) for t in range(len(row))]


def kl_cov(row, lp, frozen, *, coef):
    losses = []
    for t in range(len(row)):
        loss = -row.advantages[t] * ratio(row, t, lp)
        losses.append(loss + coef * abs(bounded(lp[t] - row.old[t])) if row.chosen[t] else loss)
    return losses


def geo_mean(row, lp, frozen, *, low, high):
    n = len(row)
    a = sum(row.advantages) / n
    total = 0.0
    for t in range(n):
        d = bounded(lp[t] - row.old[t])
        total += min(d, clip(d, -low, high)) if a > 0 else max(d, clip(d, -low, high))
    return [-a * math.exp(total / n)] * n


def cispo(row, lp, frozen, *, low, high):
    return [-clip(ratio(row, t, frozen), 1 - low, 1 + high) * row.advantages[t] * lp[t] for t in range(len(row))]


def sapo(row, lp, frozen, *, pos, neg):
    losses = []
    for t in range(len(row)):
        a = row.advantages[t]
        tau = pos if a > 0 else neg
        losses.append(-a * 4 / tau / (1 + math.exp(-tau * (ratio(row, t, lp) - 1))))
    return losses


def dro(row, lp, frozen, *, beta):
    return [-row.advantages[t] * lp[t] + beta / 2 * (lp[t] - row.old[t]) ** 2 for t in range(len(row))]


def dppo(row, lp, frozen, *, low, high, kl):
    losses = []
    for t in range(len(row)):
        a, new, old = row.advantages[t], math.exp(frozen[t]), math.exp(row.old[t])
        if kl:
            d = old * math.log(old / new) + (1 - old) * math.log((1 - old) / (1 - new))
        else:
            d = abs(new - old)
        away = (a > 0 and new > old and d > high) or (a < 0 and new < old and d > low)
        losses.append(0.0 if away else -a * ratio(row, t, lp))
    return losses


def aggregate(losses: list[list[float]], weights: list[float], mode: str, scale: float) -> float:
    """Rows of weight 0 are not there. The other weights are 1."""
    rows = [row for row, weight in zip(losses, weights, strict=True) if weight > 0]
    sums = [sum(row) for row in rows]
    if mode == "token-mean":
        return sum(sums) / sum(len(row) for row in rows)
    if mode == "token-sum":
        return sum(sums)
    if mode == "seq-mean-token-sum":
        return sum(sums) / len(rows)
    if mode == "seq-mean-token-mean":
        return sum(total / len(row) for total, row in zip(sums, rows, strict=True)) / len(rows)
    if mode == "seq-mean-token-sum-norm":
        return sum(total / scale for total in sums) / len(rows)
    raise ValueError(mode)


def total(loss, rows: list[Row], mode: str, scale: float, moved: tuple[int, int, float] | None = None) -> float:
    """The loss of all rows; ``moved`` adds a number to one log-probability (row, token), but not where it is frozen."""
    losses = []
    for number, row in enumerate(rows):
        log_probs = row.log_probs.copy()
        if moved is not None and moved[0] == number:
            log_probs[moved[1]] += moved[2]
        found = loss(row, log_probs, row.log_probs)
        losses.append([x * w for x, w in zip(found, row.importance, strict=True)] if len(row.importance) else found)
    return aggregate(losses, [row.weight for row in rows], mode, scale)


def gradient(loss, rows: list[Row], mode: str, scale: float, step: float = 1e-6) -> list[np.ndarray]:
    """Central differences of ``total`` in every log-probability, by row."""
    return [
        np.array(
            [
                (total(loss, rows, mode, scale, (n, t, step)) - total(loss, rows, mode, scale, (n, t, -step)))
                / (2 * step)
                for t in range(len(row))
            ]
        )
        for n, row in enumerate(rows)
    ]
