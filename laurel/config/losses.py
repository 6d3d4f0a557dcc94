"""The policy losses: their names and settings, and what else the settings need to know of each, without torch.

A new loss is a row here and a row of algos/table.py, which has its mathematics; a test compares both.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from laurel.config.section import NonNegative, Section

LossMode = Literal[
    "vanilla",
    "gspo",
    "gpg",
    "clip_cov",
    "kl_cov",
    "geo_mean",
    "cispo",
    "sapo",
    "dro",
    "dppo_tv",
    "dppo_kl",
]
LossAggMode = Literal["token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"]


class PolicyLoss(Section):
    loss_mode: LossMode = "vanilla"
    """Policy loss: vanilla is PPO's clipped ratio; docs/algorithms.md has the formula of each."""
    clip_cov_ratio: Annotated[float, Field(gt=0, le=1)] = 0.0002
    """Fraction of a batch's tokens that clip_cov leaves out, of those in its band of covariances."""
    clip_cov_lb: float = 1.0
    """Lower end of clip_cov's band: covariance of a token's log-probability and advantage."""
    clip_cov_ub: float = 5.0
    """Upper end of clip_cov's band."""
    kl_cov_ratio: Annotated[float, Field(gt=0, le=1)] = 0.0002
    """Fraction of a batch's tokens, those of largest covariance, that kl_cov holds near the old policy."""
    ppo_kl_coef: NonNegative = 0.1
    """Weight of kl_cov's penalty, the absolute log ratio of its tokens."""
    dro_beta: Annotated[float, Field(gt=0)] = 0.1
    """Weight of dro's penalty, half the squared log ratio of every token."""


@dataclass(frozen=True)
class Loss:
    """``reads`` are the keys under actor that some losses read and others do not. ``loss_agg_mode`` is what its paper
    takes, unless one is given. ``needs_old``: it needs old log-probabilities even for one update per batch, where the
    ratio is 1."""

    reads: tuple[str, ...] = ()
    loss_agg_mode: LossAggMode = "token-mean"
    needs_old: bool = False


CLIPS = ("clip_ratio", "clip_ratio_low", "clip_ratio_high")
BAND = ("policy_loss.clip_cov_ratio", "policy_loss.clip_cov_lb", "policy_loss.clip_cov_ub")

LOSSES: dict[LossMode, Loss] = {
    "vanilla": Loss(reads=(*CLIPS, "clip_ratio_c")),
    "gspo": Loss(reads=CLIPS, loss_agg_mode="seq-mean-token-mean"),
    "gpg": Loss(),
    "clip_cov": Loss(reads=(*CLIPS, *BAND), needs_old=True),
    "kl_cov": Loss(reads=("policy_loss.kl_cov_ratio", "policy_loss.ppo_kl_coef")),
    "geo_mean": Loss(reads=CLIPS, loss_agg_mode="seq-mean-token-mean"),
    "cispo": Loss(reads=CLIPS),
    "sapo": Loss(reads=("tau_pos", "tau_neg"), loss_agg_mode="seq-mean-token-mean"),
    "dro": Loss(reads=("policy_loss.dro_beta",)),
    "dppo_tv": Loss(reads=CLIPS),
    "dppo_kl": Loss(reads=CLIPS),
}


def loss_readers() -> dict[tuple[LossMode, ...], tuple[str, ...]]:
    """The keys under actor that only some losses read, by those losses. Example: ``("sapo",)`` reads tau_pos."""
    keys = dict.fromkeys(key for row in LOSSES.values() for key in row.reads)
    of_key = {key: tuple(name for name, row in LOSSES.items() if key in row.reads) for key in keys}
    return {who: tuple(key for key in keys if of_key[key] == who) for who in dict.fromkeys(of_key.values())}
