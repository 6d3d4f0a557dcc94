"""What the settings need to know of each advantage estimator, without torch.

A new algorithm is a row here and a row of algos/table.py, which has its mathematics; a test compares both.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

AdvEstimator = Literal[
    "gae",
    "grpo",
    "rloo",
    "reinforce_plus_plus",
    "reinforce_plus_plus_baseline",
    "remax",
    "opo",
    "gpg",
    "grpo_passk",
    "gdpo",
    "optimal_token_baseline",
]


@dataclass(frozen=True)
class Estimator:
    """``needs_critic``: it learns from values. ``compares_group``: it needs rollout.n of at least 2. ``reads`` are the
    keys of the tree that some estimators read and others do not. ``reads_rewards``: it learns from token rewards, and
    so from a KL penalty among them. ``reads_logit_grads``: it needs a forward of the policy before the update."""

    needs_critic: bool = False
    compares_group: bool = True
    reads: tuple[str, ...] = ()
    reads_rewards: bool = True
    reads_logit_grads: bool = False


GAMMA, LAM = "algorithm.gamma", "algorithm.lam"
BY_STD = "algorithm.norm_adv_by_std_in_grpo"
HEADS = ("algorithm.gdpo_reward_keys", "algorithm.gdpo_reward_weights")

ESTIMATORS: dict[AdvEstimator, Estimator] = {
    "gae": Estimator(needs_critic=True, compares_group=False, reads=(GAMMA, LAM)),
    "grpo": Estimator(reads=(BY_STD,)),
    "rloo": Estimator(),
    "reinforce_plus_plus": Estimator(compares_group=False, reads=(GAMMA,)),
    "reinforce_plus_plus_baseline": Estimator(),
    "remax": Estimator(compares_group=False),
    "opo": Estimator(),
    "gpg": Estimator(),
    "grpo_passk": Estimator(reads=(BY_STD,)),
    "gdpo": Estimator(reads=(BY_STD, *HEADS), reads_rewards=False),
    "optimal_token_baseline": Estimator(reads_logit_grads=True),
}


def named(*, needs_critic: bool) -> str:
    """The estimators that need a critic, or that do not, as a choice in words. Example: ``grpo, rloo or opo``."""
    *names, last = [name for name, row in ESTIMATORS.items() if row.needs_critic is needs_critic]
    return f"{', '.join(names)} or {last}" if names else last


def readers() -> dict[tuple[AdvEstimator, ...], tuple[str, ...]]:
    """The keys that only some estimators read, by those estimators. Example: ``("gae",)`` reads gamma and lam."""
    keys = dict.fromkeys(key for row in ESTIMATORS.values() for key in row.reads)
    of_key = {key: tuple(name for name, row in ESTIMATORS.items() if key in row.reads) for key in keys}
    return {who: tuple(key for key in keys if of_key[key] == who) for who in dict.fromkeys(of_key.values())}
