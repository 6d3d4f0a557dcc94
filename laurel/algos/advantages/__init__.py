"""Advantage estimators over packed rows: keyword tensors in, columns ``advantages`` and ``returns`` (T,) out.

Sums run in float64 and results are float32. They are 0 at tokens that the policy did not sample and in rows of weight
0, and what lies there, even NaN, is never read.
"""

from laurel.algos.advantages.gae import gae
from laurel.algos.advantages.gdpo import gdpo
from laurel.algos.advantages.group import gpg, grpo, grpo_passk, opo, rloo
from laurel.algos.advantages.reinforce import reinforce_plus_plus, reinforce_plus_plus_baseline, remax
from laurel.algos.advantages.token_baseline import optimal_token_baseline

__all__ = [
    "gae",
    "gdpo",
    "gpg",
    "grpo",
    "grpo_passk",
    "opo",
    "optimal_token_baseline",
    "reinforce_plus_plus",
    "reinforce_plus_plus_baseline",
    "remax",
    "rloo",
]
