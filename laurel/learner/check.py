"""What can be wrong with the learner's settings, found without importing torch."""

from __future__ import annotations

from laurel.config.tree import Config, Fsdp, Optim
from laurel.types import Problem


def check(config: Config) -> list[Problem]:
    part, ranks = config.actor_rollout_ref, (config.trainer.n_gpus_per_node or 1) * config.trainer.nnodes
    problems = _fsdp("actor_rollout_ref.actor.fsdp_config", part.actor.fsdp_config, ranks)
    problems += _optim("actor_rollout_ref.actor.optim", part.actor.optim)
    if part.actor.use_kl_loss or config.algorithm.use_kl_in_reward:
        problems += _fsdp("actor_rollout_ref.ref.fsdp_config", part.ref.fsdp_config, ranks)
    if config.critic.enable:
        problems += _fsdp("critic.fsdp_config", config.critic.fsdp_config, ranks)
        problems += _optim("critic.optim", config.critic.optim)
    return problems


def _fsdp(path: str, fsdp: Fsdp, ranks: int) -> list[Problem]:
    size = fsdp.fsdp_size
    if size == 0 or size < -1:
        return [Problem(f"{path}.fsdp_size", size, "must be -1 (all ranks) or the ranks that share one copy")]
    if 0 < size < ranks and ranks % size:
        choices = ", ".join(str(n) for n in range(1, ranks + 1) if ranks % n == 0)
        return [Problem(f"{path}.fsdp_size", size, f"does not divide the {ranks} ranks; use -1, {choices}")]
    return []


def _optim(path: str, optim: Optim) -> list[Problem]:
    problems = []
    if optim.lr_warmup_steps < -1:
        cure = "must be -1 (take lr_warmup_steps_ratio) or a number of updates"
        problems.append(Problem(f"{path}.lr_warmup_steps", optim.lr_warmup_steps, cure))
    if not all(0 <= beta < 1 for beta in optim.betas):
        problems.append(Problem(f"{path}.betas", optim.betas, "both must be at least 0 and below 1"))
    return problems
