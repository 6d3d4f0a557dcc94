"""Policy losses: one loss per token, and what to watch about it.

Every loss takes keyword tensors: per token (T,) ``log_probs`` (with gradient), ``old_log_probs`` and ``advantages``;
``mask`` (T,) bool, the sampled tokens of rows that count; ``row_of_token`` (T,) int64; ``weight`` (N,); and ``chosen``
(T,) bool, the tokens that clip_cov and kl_cov single out. A loss names those it needs and lets the others pass. Tokens
that the mask leaves out hold 0. A row is never split over micro-batches, so a loss may look at whole rows, and at
nothing beyond them. What is returned beside the losses is per token (T,) too: ``ppo_kl`` (old - new log-probability: k1
from the old to the new policy), and what the loss cut off.
"""

from laurel.algos.policy_loss.clipped import cispo, geo_mean, gspo, vanilla
from laurel.algos.policy_loss.covariance import clip_cov, kl_cov
from laurel.algos.policy_loss.divergence import dppo_kl, dppo_tv
from laurel.algos.policy_loss.smooth import dro, gpg, sapo

__all__ = [
    "cispo",
    "clip_cov",
    "dppo_kl",
    "dppo_tv",
    "dro",
    "geo_mean",
    "gpg",
    "gspo",
    "kl_cov",
    "sapo",
    "vanilla",
]
