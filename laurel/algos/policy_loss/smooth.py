"""Losses without a clip: the plain policy gradient, a smooth gate, a quadratic penalty."""

from __future__ import annotations

import torch
from torch import Tensor

from laurel.algos.policy_loss.ratio import log_ratios


def gpg(
    *, log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, **_: Tensor
) -> tuple[Tensor, dict[str, Tensor]]:
    """The policy gradient itself, ``loss = -A * log_probs``. Chu et al. 2025 (GPG, arXiv:2504.02546), its objective;
    the scale of its advantages is ``algorithm.adv_estimator=gpg``'s. The old policy is only watched.

    Example: A = 2, log_probs -1 give 2, with gradient -2.
    """
    return -advantages * log_probs, {"ppo_kl": -log_ratios(log_probs, old_log_probs).detach()}


def sapo(
    *,
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    tau_pos: float,
    tau_neg: float,
    **_: Tensor,
) -> tuple[Tensor, dict[str, Tensor]]:
    """A sigmoid gate in place of the clip. Gao et al. 2025 (SAPO, arXiv:2511.20347), equations 5 and 6::

        loss = -A * 4 / tau * sigmoid(tau * (ratio - 1)),   tau = tau_pos if A > 0 else tau_neg

    At ratio 1 the gradient is the policy gradient's, and it fades the faster on both sides the larger tau is. The
    paper's mean over rows is ``loss_agg_mode=seq-mean-token-mean``.

    Example, tau 1: A = 1 gives -4 * 0.5 = -2 at ratio 1, and -4 * sigmoid(1) = -2.924 at ratio 2.
    """
    log_ratio = log_ratios(log_probs, old_log_probs)
    tau = torch.where(advantages > 0, tau_pos, tau_neg)
    losses = -advantages * torch.sigmoid(tau * (log_ratio.exp() - 1.0)) * 4.0 / tau
    return losses, {"ppo_kl": -log_ratio.detach()}


def dro(
    *, log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, beta: float, **_: Tensor
) -> tuple[Tensor, dict[str, Tensor]]:
    """The policy gradient with a quadratic penalty on leaving the old policy, token by token. Richemond et al. 2024
    (DRO, arXiv:2405.19107): its squared error ``(R - V - beta * log(policy / old))^2 / (2 beta)``, with the advantage
    for R - V, less what has no gradient::

        loss = -A * log_probs + beta / 2 * (log_probs - old_log_probs)^2

    So the policy moves until the log ratio is A / beta. Nothing limits the log ratio here.

    Example, beta 0.1: A = 1, log_probs -1, old_log_probs -2 give 1 + 0.05 = 1.05, with gradient -1 + 0.1 = -0.9.
    """
    penalty = 0.5 * beta * (log_probs - old_log_probs).square()
    return -advantages * log_probs + penalty, {"ppo_kl": -log_ratios(log_probs, old_log_probs).detach()}
