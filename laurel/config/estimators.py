"""What the settings need to know of each advantage estimator, without torch.

A new algorithm is a row here and a row of algos/table.py, which has its mathematics; a test compares both.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

AdvEstimator = Literal["gae", "grpo"]


@dataclass(frozen=True)
class Estimator:
    """``needs_critic``: it learns from values. ``compares_group``: it needs rollout.n of at least 2. ``reads`` are the
    keys of the tree that some estimators read and others do not."""

    needs_critic: bool
    compares_group: bool
    reads: tuple[str, ...]


ESTIMATORS: dict[AdvEstimator, Estimator] = {
    "gae": Estimator(needs_critic=True, compares_group=False, reads=("algorithm.gamma", "algorithm.lam")),
    "grpo": Estimator(needs_critic=False, compares_group=True, reads=("algorithm.norm_adv_by_std_in_grpo",)),
}


def named(*, needs_critic: bool) -> str:
    """The estimators that need a critic, or that do not, as a choice in words. Example: ``gae or vtrace``."""
    return " or ".join(name for name, row in ESTIMATORS.items() if row.needs_critic is needs_critic)


def readers() -> dict[tuple[AdvEstimator, ...], tuple[str, ...]]:
    """The keys that only some estimators read, by those estimators. Example: ``("gae",)`` reads gamma and lam."""
    keys = dict.fromkeys(key for row in ESTIMATORS.values() for key in row.reads)
    of_key = {key: tuple(name for name, row in ESTIMATORS.items() if key in row.reads) for key in keys}
    return {who: tuple(key for key in keys if of_key[key] == who) for who in dict.fromkeys(of_key.values())}
