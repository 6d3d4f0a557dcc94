"""What can be wrong between settings that are each right, whatever the data, models and machine are."""

from __future__ import annotations

from pathlib import Path

from laurel.config.derive import in_ray_session
from laurel.config.estimators import ESTIMATORS, named
from laurel.config.tree import Config
from laurel.types import Problem

LARGEST_LR = 0.1
"""Far above any learning rate of AdamW that trains a language model; 1e6 for 1e-6 is a common slip."""


def check(config: Config) -> list[Problem]:
    """Problems of the settings among themselves."""
    return [
        *_batches(config),
        *_engine(config),
        *_learning(config),
        *_trainer(config),
    ]


def _batches(config: Config) -> list[Problem]:
    problems = []
    part, prompts = config.actor_rollout_ref, config.data.train_batch_size
    sizes = {"actor_rollout_ref.actor.ppo_mini_batch_size": part.actor.ppo_mini_batch_size}
    if config.critic.enable and config.critic.ppo_mini_batch_size != part.actor.ppo_mini_batch_size:
        sizes["critic.ppo_mini_batch_size"] = config.critic.ppo_mini_batch_size or 0
    for key, size in sizes.items():
        if size > prompts:
            cure = f"is more than data.train_batch_size={prompts}; use at most {prompts} (both count prompts)"
            problems.append(Problem(key, size, cure))
    drawn = config.data.gen_batch_size or prompts
    if drawn != prompts and not config.algorithm.filter_groups.enable:
        cure = f"must be data.train_batch_size ({prompts}) or be left out, unless algorithm.filter_groups.enable=True"
        problems.append(Problem("data.gen_batch_size", drawn, cure))
    fixed = [
        ("actor_rollout_ref.actor.", "", part.actor.use_dynamic_bsz, part.actor.ppo_micro_batch_size_per_gpu),
        (
            "actor_rollout_ref.rollout.",
            "log_prob_",
            part.rollout.log_prob_use_dynamic_bsz,
            part.rollout.log_prob_micro_batch_size_per_gpu,
        ),
        (
            "actor_rollout_ref.ref.",
            "log_prob_",
            part.ref.log_prob_use_dynamic_bsz,
            part.ref.log_prob_micro_batch_size_per_gpu,
        ),
        ("critic.", "", config.critic.use_dynamic_bsz, config.critic.ppo_micro_batch_size_per_gpu),
    ]
    for prefix, kind, dynamic, micro in fixed:
        if dynamic is False and micro is None:
            size_key = f"{prefix}{kind or 'ppo_'}micro_batch_size_per_gpu"
            cure = f"needs {size_key}; give it, or leave both out to pack by tokens"
            problems.append(Problem(f"{prefix}{kind}use_dynamic_bsz", False, cure))
    return problems


def _engine(config: Config) -> list[Problem]:
    """Engines over several GPUs must share out a node's; the native engine's own limit is the rollout room's to say."""
    parallel, ranks = config.actor_rollout_ref.rollout.tensor_model_parallel_size, config.trainer.n_gpus_per_node or 1
    if config.actor_rollout_ref.rollout.name == "native" or ranks % parallel == 0:
        return []
    divisors = [str(n) for n in range(1, ranks + 1) if ranks % n == 0]
    choice = " or ".join([", ".join(divisors[:-1]), divisors[-1]]) if len(divisors) > 1 else "1"
    cure = f"does not divide trainer.n_gpus_per_node={ranks}; use {choice}"
    return [Problem("actor_rollout_ref.rollout.tensor_model_parallel_size", parallel, cure)]


def _learning(config: Config) -> list[Problem]:
    problems = []
    rates = {"actor_rollout_ref.actor.optim.lr": config.actor_rollout_ref.actor.optim.lr}
    if config.critic.enable:
        rates["critic.optim.lr"] = config.critic.optim.lr
        if not ESTIMATORS[config.algorithm.adv_estimator].needs_critic:
            other = named(needs_critic=True)
            cure = (
                f"algorithm.adv_estimator={config.algorithm.adv_estimator} uses no critic; leave it out, or use {other}"
            )
            problems.append(Problem("critic.enable", True, cure))
    for key, rate in rates.items():
        if rate > LARGEST_LR:
            problems.append(Problem(key, rate, f"is above {LARGEST_LR}, where nothing is learned; use 1e-6, say"))
    return problems


def _trainer(config: Config) -> list[Problem]:
    trainer, problems = config.trainer, []
    if not trainer.logger:
        problems.append(Problem("trainer.logger", [], "names no logger, so nothing would be seen; use [console,file]"))
    for name in dict.fromkeys(name for name in trainer.logger if trainer.logger.count(name) > 1):
        problems.append(Problem("trainer.logger", trainer.logger, f"names {name} more than once; name it once"))
    if trainer.resume_mode == "resume_path":
        if trainer.resume_from_path is None:
            cure = "needs trainer.resume_from_path=FOLDER/global_step_N; or use auto for the newest checkpoint"
            problems.append(Problem("trainer.resume_mode", "resume_path", cure))
        elif not Path(trainer.resume_from_path).is_dir():
            cure = "the folder does not exist here; give a checkpoint folder (global_step_N), or use resume_mode=auto"
            problems.append(Problem("trainer.resume_from_path", trainer.resume_from_path, cure, machine=True))
    steps = trainer.total_training_steps
    if steps is not None and config.critic.enable and trainer.critic_warmup >= steps:
        cure = f"leaves no step for the actor (trainer.total_training_steps={steps}); lower it"
        problems.append(Problem("trainer.critic_warmup", trainer.critic_warmup, cure))
    if trainer.default_local_dir is not None and in_ray_session(trainer.default_local_dir):
        cure = "lies in Ray's session folder, which Ray deletes; give a folder that stays, such as one under your home"
        problems.append(Problem("trainer.default_local_dir", trainer.default_local_dir, cure))
    return problems
