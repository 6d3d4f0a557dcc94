"""Every policy loss with settings under which random batches meet all of its branches, beside its slow reference."""

from __future__ import annotations

from functools import partial

import torch
from unit.algos import reference_losses as reference

from laurel.algos import policy_loss
from laurel.algos.losses import ActorLoss
from laurel.batch.token_batch import TokenBatch

RANGE = {"clip_low": 0.2, "clip_high": 0.3}
LIMITS = {"low": 0.2, "high": 0.3}

# loss, reference
CASES = {
    "vanilla": (partial(policy_loss.vanilla, **RANGE, clip_c=3.0), partial(reference.vanilla, **LIMITS, c=3.0)),
    "gspo": (partial(policy_loss.gspo, **RANGE), partial(reference.gspo, **LIMITS)),
    "gpg": (policy_loss.gpg, reference.gpg),
    "clip_cov": (partial(policy_loss.clip_cov, **RANGE), partial(reference.clip_cov, **LIMITS)),
    "kl_cov": (partial(policy_loss.kl_cov, kl_coef=0.5), partial(reference.kl_cov, coef=0.5)),
    "geo_mean": (partial(policy_loss.geo_mean, **RANGE), partial(reference.geo_mean, **LIMITS)),
    "cispo": (partial(policy_loss.cispo, **RANGE), partial(reference.cispo, **LIMITS)),
    "sapo": (partial(policy_loss.sapo, tau_pos=1.0, tau_neg=1.5), partial(reference.sapo, pos=1.0, neg=1.5)),
    "dro": (partial(policy_loss.dro, beta=0.3), partial(reference.dro, beta=0.3)),
    "dppo_tv": (partial(policy_loss.dppo_tv, **RANGE), partial(reference.dppo, **LIMITS, kl=False)),
    "dppo_kl": (partial(policy_loss.dppo_kl, **RANGE), partial(reference.dppo, **LIMITS, kl=True)),
}
SCALE = 7.0


def actor_loss(name: str, mode: str, **more) -> ActorLoss:
    return ActorLoss(token_loss=CASES[name][0], loss_agg_mode=mode, loss_scale_factor=SCALE, **more)


def counts(batch: TokenBatch) -> tuple[float, float]:
    return float((batch.response_mask * batch.weight[batch.row_of_token]).sum()), float(batch.weight.sum())


def run(loss: ActorLoss, batch: TokenBatch, token_count: float, row_count: float, log_probs=None):
    """Loss, metrics and the gradient by log_probs. Columns that the batch has not are not given."""
    leaf = (batch.tokens["log_probs"] if log_probs is None else log_probs).clone().requires_grad_()
    dtype = leaf.dtype
    value, metrics = loss(
        log_probs=leaf,
        old_log_probs=batch.old_log_probs.to(dtype),
        ref_log_probs=batch.ref_log_probs.to(dtype),
        entropy=batch.tokens["entropy"].to(dtype),
        advantages=batch.advantages.to(dtype),
        mask=batch.response_mask,
        row_of_token=batch.row_of_token,
        weight=batch.weight.to(dtype),
        token_count=token_count,
        row_count=row_count,
        rollout_is_weights=batch.rollout_is_weights.to(dtype) if batch.has("rollout_is_weights") else None,
        chosen=batch.chosen if batch.has("chosen") else None,
    )
    value.backward()
    return value.detach(), metrics, leaf.grad


def with_choice(batch: TokenBatch, seed: int = 0) -> TokenBatch:
    """The batch with a third of its tokens chosen and random weights of a rollout correction."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.rand(batch.token_count, generator=generator)
    weights = 0.2 + 2 * torch.rand(batch.token_count, generator=generator)
    return batch.with_(chosen=noise < 1 / 3, rollout_is_weights=weights)


def reference_rows(batch: TokenBatch, *, weighted: bool) -> list[reference.Row]:
    rows = []
    for row in range(batch.row_count):
        where = (batch.row_of_token == row) & batch.response_mask

        def column(name, where=where):
            return batch.tokens[name][where].double().numpy()

        rows.append(
            reference.Row(
                column("log_probs"),
                column("old_log_probs"),
                column("advantages"),
                float(batch.weight[row]),
                batch.chosen[where].numpy(),
                column("rollout_is_weights") if weighted else column("log_probs")[:0],
            )
        )
    return rows
