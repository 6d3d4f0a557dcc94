"""What is wrong with the algorithm's settings, before anything is held. Imports no torch."""

from __future__ import annotations

from laurel.config.correction import RolloutCorrection
from laurel.config.estimators import ESTIMATORS, named
from laurel.config.losses import LOSSES
from laurel.config.tree import Actor, Config
from laurel.types import Problem

ACTOR, CORRECTION = "actor_rollout_ref.actor", "algorithm.rollout_correction"


def check(config: Config) -> list[Problem]:
    algorithm = config.algorithm
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
    return [*problems, *_heads(config), *_policy_loss(config.actor_rollout_ref.actor), *_correction(config)]


def _policy_loss(actor: Actor) -> list[Problem]:
    mode, settings, problems = actor.policy_loss.loss_mode, actor.policy_loss, []
    low = actor.clip_ratio if actor.clip_ratio_low is None else actor.clip_ratio_low
    # Limits of a logarithm or of a KL divergence may be larger than 1; CISPO's authors set its weight no lower limit
    if low >= 1 and "clip_ratio_low" in LOSSES[mode].reads and mode not in ("geo_mean", "dppo_kl", "cispo"):
        field = "clip_ratio" if actor.clip_ratio_low is None else "clip_ratio_low"
        cure = "neither a ratio nor a probability falls by more than 1, so this never clips; use 0.2, say"
        problems.append(Problem(f"{ACTOR}.{field}", low, cure))
    high = actor.clip_ratio if actor.clip_ratio_high is None else actor.clip_ratio_high
    if actor.clip_ratio_c <= 1 + high and "clip_ratio_c" in LOSSES[mode].reads:
        cure = f"the dual clip must lie above the clip range 1 + {high}; use {max(3.0, 2 + high)}, say"
        problems.append(Problem(f"{ACTOR}.clip_ratio_c", actor.clip_ratio_c, cure))
    if settings.clip_cov_lb >= settings.clip_cov_ub and mode == "clip_cov":
        cure = f"no covariance lies between it and clip_cov_ub={settings.clip_cov_ub}; use 1.0 and 5.0, say"
        problems.append(Problem(f"{ACTOR}.policy_loss.clip_cov_lb", settings.clip_cov_lb, cure))
    return problems


def _correction(config: Config) -> list[Problem]:
    settings = config.algorithm.rollout_correction
    problems: list[Problem] = []
    veto = settings.rollout_token_veto_threshold
    if veto is not None and veto >= 1:
        cure = "leaves out every trajectory with a token that became less likely than this; use 1e-4, say"
        problems.append(Problem(f"{CORRECTION}.rollout_token_veto_threshold", veto, cure))
    return [*problems, *_rejection(settings)]


def _rejection(settings: RolloutCorrection) -> list[Problem]:
    upper, lower = settings.rollout_rs_threshold, settings.rollout_rs_threshold_lower
    if settings.rollout_rs is None or settings.bypass_mode:
        return []
    if upper is None:
        usual = "1.001" if settings.rollout_rs == "geometric" else "2.0"
        cure = f"{CORRECTION}.rollout_rs={settings.rollout_rs} needs the largest ratio to keep; use {usual}, say"
        return [Problem(f"{CORRECTION}.rollout_rs_threshold", None, cure)]
    if lower is None and upper < 1:
        cure = f"keeps ratios from 1 / {upper} to {upper}, which are none; give a number above 1"
        return [Problem(f"{CORRECTION}.rollout_rs_threshold", upper, cure)]
    if lower is not None and upper < lower:
        cure = f"lies below rollout_rs_threshold_lower={lower}, so nothing would be kept; swap them"
        return [Problem(f"{CORRECTION}.rollout_rs_threshold", upper, cure)]
    return []


def _heads(config: Config) -> list[Problem]:
    """Of an algorithm that learns from several numbers of the reward function instead of token rewards."""
    algorithm = config.algorithm
    if ESTIMATORS[algorithm.adv_estimator].reads_rewards or config.trainer.val_only:
        return []
    keys, weights, problems = algorithm.gdpo_reward_keys, algorithm.gdpo_reward_weights, []
    if not keys or len(set(keys)) < len(keys):
        cure = "names a key twice" if keys else f"algorithm.adv_estimator={algorithm.adv_estimator} needs some"
        cure += "; name different numbers of the reward function's dict, such as [accuracy,format]"
        problems.append(Problem("algorithm.gdpo_reward_keys", keys, cure))
    elif weights is not None and len(weights) != len(keys):
        cure = f"needs one number for each of the {len(keys)} algorithm.gdpo_reward_keys; leave it out for 1 each"
        problems.append(Problem("algorithm.gdpo_reward_weights", weights, cure))
    if algorithm.use_kl_in_reward:
        cure = (
            f"algorithm.adv_estimator={algorithm.adv_estimator} compares scores and reads no token rewards, so a "
            "penalty there is lost; use actor_rollout_ref.actor.use_kl_loss=True"
        )
        problems.append(Problem("algorithm.use_kl_in_reward", True, cure))
    return problems
