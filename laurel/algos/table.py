"""Every algorithm, loss, aggregation and KL estimator by the name that users type. An algorithm is one row.

The keys equal the Literals of config/tree.py; a test compares them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor

from laurel.algos import policy_loss
from laurel.algos.advantages import (
    gae,
    gdpo,
    gpg,
    grpo,
    grpo_passk,
    opo,
    optimal_token_baseline,
    reinforce_plus_plus,
    reinforce_plus_plus_baseline,
    remax,
    rloo,
)
from laurel.algos.aggregate import AGGREGATIONS
from laurel.algos.kl import KL_ESTIMATORS, AdaptiveKl, FixedKl, KlInReward, NoKlInReward
from laurel.algos.losses import ActorLoss, CriticLoss, TokenLoss
from laurel.algos.policy_loss.covariance import ChooseBand, ChooseNone, ChooseTop, TokenChoice
from laurel.algos.value_loss import clipped_value_loss
from laurel.batch.token_batch import TokenBatch, head_column
from laurel.config.losses import LOSSES
from laurel.config.tree import Actor, AlgorithmConfig, Config, PolicyLoss

__all__ = [
    "AGGREGATIONS",
    "ALGORITHMS",
    "KL_ESTIMATORS",
    "POLICY_LOSSES",
    "Algorithm",
    "AlgorithmRow",
    "build_algorithm",
    "build_policy_loss",
    "build_token_choice",
    "build_value_loss",
]

Columns = dict[str, Tensor]
Advantages = Callable[[TokenBatch], Columns]


@dataclass(frozen=True)
class AlgorithmRow:
    """One algorithm. ``bind`` reads its settings and returns a picklable function of the batch.

    ``greedy_baseline``: each prompt is also answered greedily, and the batch carries that answer's score
    (``greedy_scores``). ``reward_heads``: the batch carries a column for each head of the reward function that
    ``algorithm.gdpo_reward_keys`` names. ``logit_grad_squares``: it carries the column of that name.
    """

    bind: Callable[[AlgorithmConfig], Advantages]
    needs_critic: bool = False
    greedy_baseline: bool = False
    reward_heads: bool = False
    logit_grad_squares: bool = False


@dataclass(frozen=True)
class Algorithm:
    """An algorithm with its settings bound. ``advantages`` maps a batch to the columns advantages and returns.

    ``reward_heads`` are those of the reward function's numbers that it learns from beside the score.
    """

    name: str
    advantages: Advantages
    greedy_baseline: bool
    kl: KlInReward | NoKlInReward
    reward_heads: tuple[str, ...] = ()
    logit_grad_squares: bool = False

    def token_rewards(self, batch: TokenBatch, *, kl_coef: float) -> Tensor:
        """(T,): the score at each row's last sampled token, minus the KL penalty where the algorithm has one."""
        return self.kl.token_rewards(batch, kl_coef=kl_coef)

    def kl_metrics(self, batch: TokenBatch, *, kl_coef: float) -> dict[str, float]:
        return self.kl.metrics(batch, kl_coef=kl_coef)

    def next_kl_coef(self, batch: TokenBatch, *, kl_coef: float) -> float:
        """The penalty's weight for the next step."""
        return self.kl.next_kl_coef(batch, kl_coef=kl_coef)


_ROWS = ("response_mask", "cu_seqlens", "weight")
_REWARDS = ("rewards", *_ROWS)
_GROUPS = (*_REWARDS, "group")


def _estimate(
    batch: TokenBatch, *, estimator: Callable[..., Columns], columns: tuple[str, ...], **settings: Any
) -> Columns:
    """``estimator`` on these columns of the batch."""
    return estimator(**{name: getattr(batch, name) for name in columns}, **settings)


def _bound(estimator: Callable[..., Columns], *columns: str, **settings: Any) -> Advantages:
    return partial(_estimate, estimator=estimator, columns=columns, **settings)


def _gdpo(batch: TokenBatch, *, keys: Sequence[str], weights: Sequence[float] | None, norm_by_std: bool) -> Columns:
    heads = {key: batch.rows[head_column(key)] for key in keys}
    weights = [1.0] * len(keys) if weights is None else weights
    columns = (*_ROWS, "group")
    return _estimate(batch, estimator=gdpo, columns=columns, heads=heads, head_weights=weights, norm_by_std=norm_by_std)


ALGORITHMS: dict[str, AlgorithmRow] = {
    "gae": AlgorithmRow(lambda a: _bound(gae, *_REWARDS, "values", gamma=a.gamma, lam=a.lam), needs_critic=True),
    "grpo": AlgorithmRow(lambda a: _bound(grpo, *_GROUPS, norm_by_std=a.norm_adv_by_std_in_grpo)),
    "rloo": AlgorithmRow(lambda a: _bound(rloo, *_GROUPS)),
    "reinforce_plus_plus": AlgorithmRow(lambda a: _bound(reinforce_plus_plus, *_REWARDS, gamma=a.gamma)),
    "reinforce_plus_plus_baseline": AlgorithmRow(lambda a: _bound(reinforce_plus_plus_baseline, *_GROUPS)),
    "remax": AlgorithmRow(lambda a: _bound(remax, *_REWARDS, "greedy_scores"), greedy_baseline=True),
    "opo": AlgorithmRow(lambda a: _bound(opo, *_GROUPS)),
    "gpg": AlgorithmRow(lambda a: _bound(gpg, *_GROUPS)),
    "grpo_passk": AlgorithmRow(lambda a: _bound(grpo_passk, *_GROUPS, norm_by_std=a.norm_adv_by_std_in_grpo)),
    "gdpo": AlgorithmRow(
        lambda a: partial(
            _gdpo,
            keys=a.gdpo_reward_keys,
            weights=a.gdpo_reward_weights,
            norm_by_std=a.norm_adv_by_std_in_grpo,
        ),
        reward_heads=True,
    ),
    "optimal_token_baseline": AlgorithmRow(
        lambda a: _bound(optimal_token_baseline, *_GROUPS, "logit_grad_squares"), logit_grad_squares=True
    ),
}


def _clips(actor: Actor) -> dict[str, Any]:
    low, high = actor.clip_ratio_low, actor.clip_ratio_high
    return {
        "clip_low": actor.clip_ratio if low is None else low,
        "clip_high": actor.clip_ratio if high is None else high,
    }


POLICY_LOSSES: dict[str, Callable[[Actor], TokenLoss]] = {
    "vanilla": lambda a: partial(policy_loss.vanilla, **_clips(a), clip_c=a.clip_ratio_c),
    "gspo": lambda a: partial(policy_loss.gspo, **_clips(a)),
    "gpg": lambda a: policy_loss.gpg,
    "clip_cov": lambda a: partial(policy_loss.clip_cov, **_clips(a)),
    "kl_cov": lambda a: partial(policy_loss.kl_cov, kl_coef=a.policy_loss.ppo_kl_coef),
    "geo_mean": lambda a: partial(policy_loss.geo_mean, **_clips(a)),
    "cispo": lambda a: partial(policy_loss.cispo, **_clips(a)),
    "sapo": lambda a: partial(policy_loss.sapo, tau_pos=a.tau_pos, tau_neg=a.tau_neg),
    "dro": lambda a: partial(policy_loss.dro, beta=a.policy_loss.dro_beta),
    "dppo_tv": lambda a: partial(policy_loss.dppo_tv, **_clips(a)),
    "dppo_kl": lambda a: partial(policy_loss.dppo_kl, **_clips(a)),
}

TOKEN_CHOICES: dict[str, Callable[[PolicyLoss, int], TokenChoice]] = {
    "clip_cov": lambda p, seed: ChooseBand(p.clip_cov_ratio, p.clip_cov_lb, p.clip_cov_ub, seed),
    "kl_cov": lambda p, seed: ChooseTop(p.kl_cov_ratio),
}


def build_algorithm(config: Config) -> Algorithm:
    name = config.algorithm.adv_estimator
    row = ALGORITHMS[name]
    return Algorithm(
        name=name,
        advantages=row.bind(config.algorithm),
        greedy_baseline=row.greedy_baseline,
        kl=_build_kl(config.algorithm),
        reward_heads=tuple(config.algorithm.gdpo_reward_keys) if row.reward_heads else (),
        logit_grad_squares=row.logit_grad_squares,
    )


def build_policy_loss(config: Config) -> ActorLoss:
    actor = config.actor_rollout_ref.actor
    return ActorLoss(
        token_loss=POLICY_LOSSES[actor.policy_loss.loss_mode](actor),
        loss_agg_mode=actor.loss_agg_mode or LOSSES[actor.policy_loss.loss_mode].loss_agg_mode,
        loss_scale_factor=actor.loss_scale_factor or float(config.data.max_response_length),
        entropy_coeff=actor.entropy_coeff,
        use_kl_loss=actor.use_kl_loss,
        kl_loss_coef=actor.kl_loss_coef,
        kl_loss_type=actor.kl_loss_type,
    )


def build_token_choice(config: Config) -> TokenChoice:
    """Which tokens of a batch the policy loss singles out, as a function of the batch and the step."""
    settings = config.actor_rollout_ref.actor.policy_loss
    choose = TOKEN_CHOICES.get(settings.loss_mode)
    return ChooseNone() if choose is None else choose(settings, config.trainer.seed)


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
