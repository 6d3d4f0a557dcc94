"""Every algorithm, loss, aggregation and KL estimator by the name that users type. An algorithm is one row.

The keys equal the Literals of config/tree.py; a test compares them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from torch import Tensor

from laurel.algos.advantages import gae, grpo
from laurel.algos.aggregate import AGGREGATIONS
from laurel.algos.kl import KL_ESTIMATORS, AdaptiveKl, FixedKl, KlInReward, NoKlInReward
from laurel.algos.losses import ActorLoss, CriticLoss, TokenLoss
from laurel.algos.policy_loss import vanilla
from laurel.algos.value_loss import clipped_value_loss
from laurel.batch.token_batch import TokenBatch
from laurel.config.tree import Actor, AlgorithmConfig, Config
from laurel.types import Group

__all__ = [
    "AGGREGATIONS",
    "ALGORITHMS",
    "KL_ESTIMATORS",
    "POLICY_LOSSES",
    "Algorithm",
    "AlgorithmRow",
    "build_algorithm",
    "build_policy_loss",
    "build_value_loss",
]

Advantages = Callable[[TokenBatch], dict[str, Tensor]]


@dataclass(frozen=True)
class AlgorithmRow:
    """One algorithm. ``bind`` reads its settings and returns a picklable function of the batch."""

    bind: Callable[[AlgorithmConfig], Advantages]
    needs_critic: bool
    keep_group: Callable[[Group], bool]


@dataclass(frozen=True)
class Algorithm:
    """An algorithm with its settings bound. ``advantages`` maps a batch to the columns advantages and returns."""

    name: str
    advantages: Advantages
    keep_group: Callable[[Group], bool]
    kl: KlInReward | NoKlInReward

    def token_rewards(self, batch: TokenBatch, *, kl_coef: float) -> Tensor:
        """(T,): the score at each row's last sampled token, minus the KL penalty where the algorithm has one."""
        return self.kl.token_rewards(batch, kl_coef=kl_coef)

    def kl_metrics(self, batch: TokenBatch, *, kl_coef: float) -> dict[str, float]:
        return self.kl.metrics(batch, kl_coef=kl_coef)

    def next_kl_coef(self, batch: TokenBatch, *, kl_coef: float) -> float:
        """The penalty's weight for the next step."""
        return self.kl.next_kl_coef(batch, kl_coef=kl_coef)


def keep_all(group: Group) -> bool:
    return True


def _gae(batch: TokenBatch, *, gamma: float, lam: float) -> dict[str, Tensor]:
    return gae(
        rewards=batch.rewards,
        values=batch.values,
        mask=batch.response_mask,
        row_of_token=batch.row_of_token,
        weight=batch.weight,
        gamma=gamma,
        lam=lam,
    )


def _grpo(batch: TokenBatch, *, norm_by_std: bool) -> dict[str, Tensor]:
    return grpo(
        rewards=batch.rewards,
        mask=batch.response_mask,
        row_of_token=batch.row_of_token,
        group=batch.group,
        weight=batch.weight,
        norm_by_std=norm_by_std,
    )


def _bind_gae(algorithm: AlgorithmConfig) -> Advantages:
    return partial(_gae, gamma=algorithm.gamma, lam=algorithm.lam)


def _bind_grpo(algorithm: AlgorithmConfig) -> Advantages:
    return partial(_grpo, norm_by_std=algorithm.norm_adv_by_std_in_grpo)


def _bind_vanilla(actor: Actor) -> TokenLoss:
    low = actor.clip_ratio if actor.clip_ratio_low is None else actor.clip_ratio_low
    high = actor.clip_ratio if actor.clip_ratio_high is None else actor.clip_ratio_high
    return partial(vanilla, clip_low=low, clip_high=high, clip_c=actor.clip_ratio_c)


ALGORITHMS: dict[str, AlgorithmRow] = {
    "gae": AlgorithmRow(bind=_bind_gae, needs_critic=True, keep_group=keep_all),
    "grpo": AlgorithmRow(bind=_bind_grpo, needs_critic=False, keep_group=keep_all),
}

POLICY_LOSSES: dict[str, Callable[[Actor], TokenLoss]] = {
    "vanilla": _bind_vanilla,
}


def build_algorithm(config: Config) -> Algorithm:
    name = config.algorithm.adv_estimator
    row = ALGORITHMS[name]
    return Algorithm(
        name=name,
        advantages=row.bind(config.algorithm),
        keep_group=row.keep_group,
        kl=_build_kl(config.algorithm),
    )


def build_policy_loss(config: Config) -> ActorLoss:
    actor = config.actor_rollout_ref.actor
    return ActorLoss(
        token_loss=POLICY_LOSSES[actor.policy_loss.loss_mode](actor),
        loss_agg_mode=actor.loss_agg_mode,
        loss_scale_factor=actor.loss_scale_factor or float(config.data.max_response_length),
        entropy_coeff=actor.entropy_coeff,
        use_kl_loss=actor.use_kl_loss,
        kl_loss_coef=actor.kl_loss_coef,
        kl_loss_type=actor.kl_loss_type,
    )


def build_value_loss(config: Config) -> CriticLoss:
    return CriticLoss(
        token_loss=partial(clipped_value_loss, clip_range=config.critic.cliprange_value),
        loss_agg_mode=config.critic.loss_agg_mode,
        loss_scale_factor=float(config.data.max_response_length),
    )


def _build_kl(algorithm: AlgorithmConfig) -> KlInReward | NoKlInReward:
    if not algorithm.use_kl_in_reward:
        return NoKlInReward()
    control = algorithm.kl_ctrl
    adaptive = control.type == "adaptive"
    controller = AdaptiveKl(target_kl=control.target_kl, horizon=control.horizon) if adaptive else FixedKl()
    return KlInReward(estimator=algorithm.kl_penalty, controller=controller)
