"""Each estimator with settings, as users name it: what the tests of all of them run over."""

from __future__ import annotations

from torch import Tensor
from unit.algos.reference_advantages import HEADS

from laurel.algos.table import build_algorithm
from laurel.batch.token_batch import TokenBatch
from laurel.config.tree import Config

WEIGHTS = (1.0, 0.5, 2.0)
NORM = "norm_adv_by_std_in_grpo"

# name, settings under algorithm, the same for the reference
CASES: list[tuple[str, dict, dict]] = [
    ("gae", {"gamma": 1.0, "lam": 1.0}, {"gamma": 1.0, "lam": 1.0}),
    ("gae", {"gamma": 0.99, "lam": 0.95}, {"gamma": 0.99, "lam": 0.95}),
    ("gae", {"gamma": 1.0, "lam": 0.0}, {"gamma": 1.0, "lam": 0.0}),
    ("gae", {"gamma": 0.0, "lam": 1.0}, {"gamma": 0.0, "lam": 1.0}),
    ("grpo", {}, {}),
    ("grpo", {NORM: False}, {"norm_by_std": False}),
    ("rloo", {}, {}),
    ("reinforce_plus_plus", {}, {"gamma": 1.0}),
    ("reinforce_plus_plus", {"gamma": 0.9}, {"gamma": 0.9}),
    ("reinforce_plus_plus_baseline", {}, {}),
    ("remax", {}, {}),
    ("opo", {}, {}),
    ("gpg", {}, {}),
    ("grpo_passk", {}, {}),
    ("grpo_passk", {NORM: False}, {"norm_by_std": False}),
    ("gdpo", {"gdpo_reward_keys": list(HEADS)}, {"weights": dict.fromkeys(HEADS, 1.0)}),
    (
        "gdpo",
        {"gdpo_reward_keys": list(HEADS), "gdpo_reward_weights": list(WEIGHTS), NORM: False},
        {"weights": dict(zip(HEADS, WEIGHTS, strict=True)), "norm_by_std": False},
    ),
    ("optimal_token_baseline", {}, {}),
]
IDS = [f"{name}-{'-'.join(map(str, settings.values()))}" for name, settings, _ in CASES]


def estimate(name: str, batch: TokenBatch, **settings) -> dict[str, Tensor]:
    """The columns that the named estimator gives ``batch``, bound as a run binds it."""
    if name == "gdpo":
        settings = {"gdpo_reward_keys": list(HEADS), **settings}
    config = Config.model_validate({"algorithm": {"adv_estimator": name, **settings}})
    return build_algorithm(config).advantages(batch)
