"""Keys that do nothing because of another key: said once, at the start.

Each row names keys (``*`` for anything) and when they are idle, read from the resolved settings.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase

from laurel.config.estimators import ESTIMATORS, readers
from laurel.config.losses import loss_readers
from laurel.config.tree import Config

Given = frozenset[str]
ACTOR, ROLLOUT, REF, CRITIC = (
    "actor_rollout_ref.actor.",
    "actor_rollout_ref.rollout.",
    "actor_rollout_ref.ref.",
    "critic.",
)
CORRECTION = "algorithm.rollout_correction."


@dataclass(frozen=True)
class Idle:
    """``keys`` have no effect when ``when(config, given)``; ``because`` says which setting makes it so."""

    keys: tuple[str, ...]
    when: Callable[[Config, Given], bool]
    because: str


def _no_critic(config: Config, given: Given) -> bool:
    return not config.critic.enable


def _no_reference(config: Config, given: Given) -> bool:
    return not config.needs_reference


def _val_only(config: Config, given: Given) -> bool:
    return config.trainer.val_only


def _both_sides(config: Config, given: Given) -> bool:
    return {ACTOR + "clip_ratio_low", ACTOR + "clip_ratio_high"} <= given


def _one_rank(config: Config, given: Given) -> bool:
    return config.trainer.nnodes * (config.trainer.n_gpus_per_node or 1) == 1


def _whole_batch_updates(config: Config, given: Given) -> bool:
    sizes = [config.actor_rollout_ref.actor.ppo_mini_batch_size]
    if config.critic.enable:
        sizes.append(config.critic.ppo_mini_batch_size or sizes[0])
    return min(sizes) >= config.data.train_batch_size


def _ratio_is_one(config: Config, given: Given) -> bool:
    return config.ratio_is_one


def _no_forward_before(config: Config, given: Given) -> bool:
    """As ``_ratio_is_one``, for the forwards of the policy before the update."""
    return _ratio_is_one(config, given) and not ESTIMATORS[config.algorithm.adv_estimator].reads_logit_grads


def _packing(prefix: str, kind: str, dynamic: Callable[[Config], bool | None]) -> tuple[Idle, Idle]:
    """Of the two ways to size a forward, one counts."""
    size, budget = f"{prefix}{kind}micro_batch_size_per_gpu", f"{prefix}{kind}max_token_len_per_gpu"
    flag = f"{prefix}{kind if kind == 'log_prob_' else ''}use_dynamic_bsz"
    return (
        Idle((size,), lambda c, g: dynamic(c) is True, f"{flag} packs by {budget}"),
        Idle((budget,), lambda c, g: dynamic(c) is False, f"{size} sets the size of a forward"),
    )


def _unread(estimators: tuple[str, ...], keys: tuple[str, ...]) -> Idle:
    """Keys that belong to some advantage estimators alone."""
    because = f"read by algorithm.adv_estimator={' or '.join(estimators)} alone"
    return Idle(keys, lambda c, g: c.algorithm.adv_estimator not in estimators, because)


def _unread_loss(losses: tuple[str, ...], keys: tuple[str, ...]) -> Idle:
    """Keys that belong to some policy losses alone."""
    because = f"read by {ACTOR}policy_loss.loss_mode={' or '.join(losses)} alone"
    keys = tuple(ACTOR + key for key in keys)
    return Idle(keys, lambda c, g: c.actor_rollout_ref.actor.policy_loss.loss_mode not in losses, because)


def _bypass(config: Config, given: Given) -> bool:
    return config.algorithm.rollout_correction.bypass_mode


def _bypass_and_no_forward(config: Config, given: Given) -> bool:
    return _bypass(config, given) and not ESTIMATORS[config.algorithm.adv_estimator].reads_logit_grads


RATIO_IS_ONE = (
    "one update per batch (ppo_epochs, ppo_mini_batch_size, train_batch_size) takes its own log-probabilities as the "
    "old ones, so the ratio is exactly 1"
)
VALIDATES_AND_STOPS = "trainer.val_only validates and stops"
TRAINING = (
    *(
        ACTOR + name
        for name in ("ppo_*", "use_dynamic_bsz", "shuffle", "clip_ratio*", "tau_*", "loss_*", "entropy_coeff")
    ),
    *(ACTOR + name for name in ("use_kl_loss", "kl_loss_*", "policy_loss.*", "optim.*")),
    *(ROLLOUT + name for name in ("n", "temperature", "top_p", "top_k", "ignore_eos", "log_prob_*")),
    REF + "*",
    "algorithm.*",
    *("data." + name for name in ("train_batch_size", "gen_batch_size", "train_max_samples", "shuffle", "seed")),
    *("trainer." + name for name in ("total_epochs", "total_training_steps", "critic_warmup", "val_before_train")),
    *("trainer." + name for name in ("test_freq", "save_freq", "max_actor_ckpt_to_keep", "rollout_data_dir")),
)

# The first row that names a key speaks for it, so rows for a whole absent role come first.
IDLE: tuple[Idle, ...] = (
    Idle(TRAINING, _val_only, VALIDATES_AND_STOPS),
    Idle((CRITIC + "*",), lambda c, g: c.trainer.val_only and not c.critic.enable, VALIDATES_AND_STOPS),
    Idle((CRITIC + "*",), _no_critic, "algorithm.adv_estimator trains no critic"),
    Idle((REF + "*",), _no_reference, "no KL is used (actor.use_kl_loss, algorithm.use_kl_in_reward), so no reference"),
    Idle(("trainer.critic_warmup",), _no_critic, "algorithm.adv_estimator trains no critic"),
    *(_unread(estimators, keys) for estimators, keys in readers().items()),
    *(_unread_loss(losses, keys) for losses, keys in loss_readers().items()),
    Idle(
        (CORRECTION + "rollout_*",),
        _bypass,
        CORRECTION + "bypass_mode takes the engine's log-probabilities as the old ones, so their ratio is 1",
    ),
    Idle(
        (CORRECTION + "rollout_is_threshold", CORRECTION + "rollout_is_batch_normalize"),
        lambda c, g: c.algorithm.rollout_correction.rollout_is is None,
        CORRECTION + "rollout_is is not given",
    ),
    Idle(
        (CORRECTION + "rollout_rs_threshold", CORRECTION + "rollout_rs_threshold_lower"),
        lambda c, g: c.algorithm.rollout_correction.rollout_rs is None,
        CORRECTION + "rollout_rs is not given",
    ),
    Idle(
        ("algorithm.kl_ctrl.*", "algorithm.kl_penalty"),
        lambda c, g: not c.algorithm.use_kl_in_reward,
        "algorithm.use_kl_in_reward is False",
    ),
    Idle(
        ("algorithm.kl_ctrl.horizon", "algorithm.kl_ctrl.target_kl"),
        lambda c, g: c.algorithm.kl_ctrl.type == "fixed",
        "algorithm.kl_ctrl.type=fixed keeps the coefficient",
    ),
    Idle(
        ("algorithm.filter_groups.metric", "algorithm.filter_groups.max_num_gen_batches", "data.gen_batch_size"),
        lambda c, g: not c.algorithm.filter_groups.enable,
        "algorithm.filter_groups.enable is False",
    ),
    Idle(
        (ACTOR + "kl_loss_coef", ACTOR + "kl_loss_type"),
        lambda c, g: not c.actor_rollout_ref.actor.use_kl_loss,
        ACTOR + "use_kl_loss is False",
    ),
    Idle((ROLLOUT + "log_prob_*",), _no_forward_before, RATIO_IS_ONE),
    Idle(
        (ROLLOUT + "log_prob_*",),
        _bypass_and_no_forward,
        CORRECTION + "bypass_mode takes the engine's log-probabilities, and no forward computes them",
    ),
    Idle(
        (
            *(f"{ACTOR}{name}" for name in ("clip_ratio*", "tau_*")),
            *(f"{ACTOR}policy_loss.{name}" for name in ("kl_cov_ratio", "ppo_kl_coef", "dro_beta")),
        ),
        _ratio_is_one,
        RATIO_IS_ONE,
    ),
    Idle((ACTOR + "clip_ratio",), _both_sides, "clip_ratio_low and clip_ratio_high are both given"),
    Idle(
        (ACTOR + "loss_scale_factor",),
        lambda c, g: c.actor_rollout_ref.actor.loss_agg_mode != "seq-mean-token-sum-norm",
        ACTOR + "loss_agg_mode is not seq-mean-token-sum-norm",
    ),
    Idle(
        (ACTOR + "shuffle",),
        _whole_batch_updates,
        "one mini-batch is the whole batch (ppo_mini_batch_size, train_batch_size)",
    ),
    *_packing(ACTOR, "ppo_", lambda c: c.actor_rollout_ref.actor.use_dynamic_bsz),
    *_packing(ROLLOUT, "log_prob_", lambda c: c.actor_rollout_ref.rollout.log_prob_use_dynamic_bsz),
    *_packing(REF, "log_prob_", lambda c: c.actor_rollout_ref.ref.log_prob_use_dynamic_bsz),
    *_packing(CRITIC, "ppo_", lambda c: c.critic.use_dynamic_bsz),
    Idle(
        (ACTOR + "optim.lr_warmup_steps_ratio",),
        lambda c, g: c.actor_rollout_ref.actor.optim.lr_warmup_steps >= 0,
        ACTOR + "optim.lr_warmup_steps is given",
    ),
    Idle(
        (CRITIC + "optim.lr_warmup_steps_ratio",),
        lambda c, g: c.critic.optim.lr_warmup_steps >= 0,
        CRITIC + "optim.lr_warmup_steps is given",
    ),
    Idle(
        (ACTOR + "optim.min_lr_ratio",),
        lambda c, g: c.actor_rollout_ref.actor.optim.lr_scheduler_type == "constant",
        ACTOR + "optim.lr_scheduler_type=constant keeps lr",
    ),
    Idle(
        (CRITIC + "optim.min_lr_ratio",),
        lambda c, g: c.critic.optim.lr_scheduler_type == "constant",
        CRITIC + "optim.lr_scheduler_type=constant keeps lr",
    ),
    Idle(
        tuple(ROLLOUT + "val_kwargs." + name for name in ("temperature", "top_p", "top_k")),
        lambda c, g: not c.actor_rollout_ref.rollout.val_kwargs.do_sample,
        ROLLOUT + "val_kwargs.do_sample is False: validation is greedy",
    ),
    Idle(
        (ROLLOUT + "val_kwargs.n",),
        lambda c, g: (
            c.actor_rollout_ref.rollout.val_kwargs.n > 1 and not c.actor_rollout_ref.rollout.val_kwargs.do_sample
        ),
        ROLLOUT + "val_kwargs.do_sample is False: greedy answers to one row are all the same, each paid for",
    ),
    Idle(
        (ROLLOUT + "engine_kwargs",),
        lambda c, g: c.actor_rollout_ref.rollout.name not in c.actor_rollout_ref.rollout.engine_kwargs,
        "it has no entry for the engine of " + ROLLOUT + "name",
    ),
    Idle(
        (ROLLOUT + "gpu_memory_utilization",),
        lambda c, g: c.trainer.device == "cpu",
        "trainer.device is cpu",
    ),
    Idle(
        (ACTOR + "fsdp_config.optimizer_offload", CRITIC + "fsdp_config.optimizer_offload"),
        lambda c, g: c.trainer.device == "cpu",
        "trainer.device is cpu",
    ),
    Idle(
        tuple(f"{ACTOR}fsdp_config.{name}" for name in ("param_offload", "fsdp_size", "reshard_after_forward")),
        _one_rank,
        "one rank (trainer.nnodes, trainer.n_gpus_per_node) shares nothing",
    ),
    Idle(
        tuple(f"{CRITIC}fsdp_config.{name}" for name in ("param_offload", "fsdp_size", "reshard_after_forward")),
        _one_rank,
        "one rank (trainer.nnodes, trainer.n_gpus_per_node) shares nothing",
    ),
    Idle(
        tuple(f"{REF}fsdp_config.{name}" for name in ("param_offload", "fsdp_size", "reshard_after_forward")),
        _one_rank,
        "one rank (trainer.nnodes, trainer.n_gpus_per_node) shares nothing",
    ),
    Idle(
        (REF + "fsdp_config.optimizer_offload",),
        lambda c, g: True,
        "the reference policy has no optimizer",
    ),
    Idle(
        ("data.truncation",),
        lambda c, g: c.data.filter_overlong_prompts,
        "data.filter_overlong_prompts leaves them out",
    ),
    Idle(("data.seed",), lambda c, g: not c.data.shuffle, "data.shuffle is False"),
    Idle(
        ("trainer.resume_from_path",),
        lambda c, g: c.trainer.resume_mode != "resume_path",
        "trainer.resume_mode is not resume_path",
    ),
    Idle(
        ("trainer.total_epochs",),
        lambda c, g: c.trainer.total_training_steps is not None,
        "trainer.total_training_steps is given",
    ),
    Idle(
        ("trainer.test_freq", "trainer.val_before_train", "trainer.log_val_generations", "trainer.validation_data_dir"),
        lambda c, g: not c.data.val_files,
        "data.val_files is empty: nothing is validated",
    ),
    Idle(
        ("trainer.log_val_generations",),
        lambda c, g: set(c.trainer.logger) == {"file"},
        "trainer.logger has only file, which shows no text (every validation is kept as parquet)",
    ),
    Idle(
        ("reward.timeout", "reward.memory_limit_mb"),
        lambda c, g: c.reward.num_workers == 0,
        "reward.num_workers is 0",
    ),
    Idle(
        ("reward.custom_reward_function.name",),
        lambda c, g: c.reward.custom_reward_function.path is None,
        "reward.custom_reward_function.path is not given",
    ),
)


def notes(config: Config, given: Given) -> list[str]:
    """One line per reason; a key is named once, by the first row under which it is idle."""
    told: dict[str, list[str]] = {}
    left = set(given)
    for row in IDLE:
        keys = [key for key in sorted(left) if any(fnmatchcase(key, pattern) for pattern in row.keys)]
        if keys and row.when(config, given):
            left.difference_update(keys)
            told.setdefault(row.because, []).extend(keys)
    return [
        f"{', '.join(keys)} {'has' if len(keys) == 1 else 'have'} no effect: {because}"
        for because, keys in told.items()
    ]
