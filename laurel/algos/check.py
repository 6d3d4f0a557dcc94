"""What is wrong with the algorithm's settings, before anything is held. Imports no torch."""

from __future__ import annotations

from laurel.config.estimators import ESTIMATORS, named
from laurel.config.tree import Config
from laurel.types import Problem


def check(config: Config) -> list[Problem]:
    algorithm, actor = config.algorithm, config.actor_rollout_ref.actor
    problems: list[Problem] = []

    if config.needs_critic and config.critic.enable is False:
        other = named(needs_critic=False)
        cure = f"algorithm.adv_estimator={algorithm.adv_estimator} needs a critic; leave it out, or use {other}"
        problems.append(Problem("critic.enable", False, cure))
    compares = ESTIMATORS[algorithm.adv_estimator].compares_group and not config.trainer.val_only
    if compares and config.actor_rollout_ref.rollout.n < 2:
        problems.append(
            Problem(
                "actor_rollout_ref.rollout.n",
                config.actor_rollout_ref.rollout.n,
                f"algorithm.adv_estimator={algorithm.adv_estimator} compares the samples of one prompt and needs at "
                "least 2; use actor_rollout_ref.rollout.n=8",
            )
        )
    if algorithm.use_kl_in_reward and algorithm.kl_ctrl.type == "adaptive" and algorithm.kl_ctrl.kl_coef == 0:
        problems.append(
            Problem(
                "algorithm.kl_ctrl.kl_coef",
                algorithm.kl_ctrl.kl_coef,
                "the adaptive controller multiplies this weight, so it can never leave 0; use 0.001, say",
            )
        )
    low = actor.clip_ratio if actor.clip_ratio_low is None else actor.clip_ratio_low
    if low >= 1:
        field = "clip_ratio" if actor.clip_ratio_low is None else "clip_ratio_low"
        problems.append(
            Problem(
                f"actor_rollout_ref.actor.{field}",
                low,
                "a ratio is never below 0, so a range of 1 or more never clips; use 0.2, say",
            )
        )
    high = actor.clip_ratio if actor.clip_ratio_high is None else actor.clip_ratio_high
    if actor.clip_ratio_c <= 1 + high:
        problems.append(
            Problem(
                "actor_rollout_ref.actor.clip_ratio_c",
                actor.clip_ratio_c,
                f"the dual clip must lie above the clip range 1 + {high}; use {max(3.0, 2 + high)}, say",
            )
        )
    return problems
