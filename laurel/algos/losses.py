"""Whole losses with their settings bound: what a learner calls on each micro-batch. Frozen and picklable."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from laurel.algos.aggregate import Tokens, aggregate
from laurel.algos.kl import KL_ESTIMATORS

TokenLoss = Callable[..., tuple[Tensor, dict[str, Tensor]]]


@dataclass(frozen=True)
class ActorLoss:
    """``loss = agg(w * policy loss) - entropy_coeff * agg(entropy) + kl_loss_coef * agg(KL(policy, reference))``.

    ``token_loss`` is a policy loss of table.py with its settings bound; ``agg`` is ``loss_agg_mode``; w are the weights
    of the rollout correction, 1 without one.
    """

    token_loss: TokenLoss
    loss_agg_mode: str
    loss_scale_factor: float
    entropy_coeff: float = 0.0
    use_kl_loss: bool = False
    kl_loss_coef: float = 0.0
    kl_loss_type: str = "low_var_kl"

    @property
    def needs_entropy(self) -> bool:
        """Whether entropy enters the loss, so that it is needed with its gradient."""
        return self.entropy_coeff != 0.0

    def __call__(
        self,
        *,
        log_probs: Tensor,
        old_log_probs: Tensor,
        ref_log_probs: Tensor | None,
        entropy: Tensor | None,
        advantages: Tensor,
        mask: Tensor,
        row_of_token: Tensor,
        weight: Tensor,
        token_count: float,
        row_count: float,
        rollout_is_weights: Tensor | None = None,
        chosen: Tensor | None = None,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """One micro-batch: per-token tensors (T,), ``weight`` (N,), counts of the whole update over all ranks.

        ``chosen`` are the tokens that clip_cov and kl_cov single out; None is none of them.
        Returns a scalar with gradient and detached scalar metrics. Loss and metrics are already divided by the counts
        passed in: the SUM over the update's micro-batches and ranks is the value of the update, nothing more to divide.
        """
        tokens = Tokens(mask, row_of_token, weight, token_count, row_count, self.loss_scale_factor)
        active = tokens.active
        # Selected before any nonlinearity: 0 * inf in its backward pass would be NaN.
        log_probs = torch.where(active, log_probs, 0.0)
        old_log_probs = torch.where(active, old_log_probs, 0.0)
        advantages = torch.where(active, advantages, 0.0)

        losses, watched = self.token_loss(
            log_probs=log_probs,
            old_log_probs=old_log_probs,
            advantages=advantages,
            mask=active,
            row_of_token=row_of_token,
            weight=weight,
            chosen=torch.zeros_like(active) if chosen is None else chosen,
        )
        if rollout_is_weights is not None:
            losses = losses * torch.where(active, rollout_is_weights, 0.0)
        loss = aggregate(losses, tokens, self.loss_agg_mode)
        metrics = {"actor/pg_loss": loss.detach()}
        metrics |= {f"actor/{name}": tokens.mean(value) for name, value in watched.items()}
        if entropy is not None:
            metrics["actor/entropy"] = tokens.mean(entropy.detach())
        if self.needs_entropy:
            if entropy is None:
                raise ValueError(f"entropy_coeff={self.entropy_coeff} needs the entropy of each token; got None")
            loss = loss - self.entropy_coeff * aggregate(entropy, tokens, self.loss_agg_mode)
        if self.use_kl_loss:
            if ref_log_probs is None:
                raise ValueError("use_kl_loss=True needs ref_log_probs; got None")
            kl = KL_ESTIMATORS[self.kl_loss_type](log_probs, torch.where(active, ref_log_probs, 0.0))
            kl_loss = aggregate(kl, tokens, self.loss_agg_mode)
            metrics["actor/kl_loss"] = kl_loss.detach()
            loss = loss + self.kl_loss_coef * kl_loss
        return loss, metrics


@dataclass(frozen=True)
class CriticLoss:
    """``loss = agg(value loss)``, with ``token_loss`` of value_loss.py and its clip range bound."""

    token_loss: TokenLoss
    loss_agg_mode: str
    loss_scale_factor: float

    def __call__(
        self,
        *,
        values: Tensor,
        old_values: Tensor,
        returns: Tensor,
        mask: Tensor,
        row_of_token: Tensor,
        weight: Tensor,
        token_count: float,
        row_count: float,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """As ActorLoss: a scalar and metrics whose SUM over micro-batches and ranks is the value of the update."""
        tokens = Tokens(mask, row_of_token, weight, token_count, row_count, self.loss_scale_factor)
        active = tokens.active
        values = torch.where(active, values, 0.0)
        losses, watched = self.token_loss(
            values=values,
            old_values=torch.where(active, old_values, 0.0),
            returns=torch.where(active, returns, 0.0),
        )
        loss = aggregate(losses, tokens, self.loss_agg_mode)
        metrics = {"critic/vf_loss": loss.detach(), "critic/vpred_mean": tokens.mean(values.detach())}
        return loss, metrics | {f"critic/{name}": tokens.mean(value) for name, value in watched.items()}
