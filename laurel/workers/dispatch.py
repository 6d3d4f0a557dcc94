"""How the controller cuts a batch for ranks and puts their answers together. Pure; every rank does what it is given."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from laurel.batch.pack import MiniBatch, gather_tokens, mini_batches, rank_shares, split_for_ranks
from laurel.batch.token_batch import TokenBatch
from laurel.config.tree import Actor, Critic, Ref, Rollout


@dataclass(frozen=True)
class Budget:
    """Bounds of one forward on one rank; None is no bound."""

    max_tokens: int | None
    max_rows: int | None = None


@dataclass(frozen=True)
class UpdatePlan:
    """How a batch becomes optimizer updates: prompts per update, passes, order, and the budget of a forward."""

    prompts_per_update: int
    epochs: int
    shuffle: bool
    seed: int
    budget: Budget


def update_budget(section: Actor | Critic) -> Budget:
    return _budget(section.use_dynamic_bsz, section.ppo_micro_batch_size_per_gpu, section.ppo_max_token_len_per_gpu)


def log_prob_budget(section: Rollout | Ref) -> Budget:
    return _budget(
        section.log_prob_use_dynamic_bsz,
        section.log_prob_micro_batch_size_per_gpu,
        section.log_prob_max_token_len_per_gpu,
    )


def _budget(dynamic: bool | None, rows: int | None, tokens: int | None) -> Budget:
    """Packing by tokens is the default; a micro-batch size in trajectories replaces it unless dynamic is asked for."""
    if rows is None or dynamic:
        return Budget(tokens)
    return Budget(None, rows)


def group_order(count: int, *, seed: int, step: int, epoch: int) -> list[int]:
    """A permutation of ``count`` groups that is a function of its arguments alone, on every platform."""
    digest = hashlib.blake2b(f"mini-batches/{seed}/{step}/{epoch}".encode(), digest_size=8).digest()
    order = list(range(count))
    random.Random(int.from_bytes(digest, "big")).shuffle(order)
    return order


def updates(batch: TokenBatch, plan: UpdatePlan, *, step: int) -> list[TokenBatch]:
    """The mini-batch of each optimizer update, over all ranks, in order; none of those in which nothing counts."""
    groups = int(batch.group.unique().numel())
    found: list[TokenBatch] = []
    for epoch in range(plan.epochs):
        order = group_order(groups, seed=plan.seed, step=step, epoch=epoch) if plan.shuffle else None
        found += mini_batches(batch, plan.prompts_per_update, order)
    return [mini for mini in found if mini.weight.any()]


def share_updates(batch: TokenBatch, plan: UpdatePlan, *, step: int, ranks: int) -> list[Sequence[MiniBatch]]:
    """For each rank, its share of every update, in order."""
    shared = [
        rank_shares(mini, ranks, plan.budget.max_tokens, plan.budget.max_rows)
        for mini in updates(batch, plan, step=step)
    ]
    return [tuple(update[rank] for update in shared) for rank in range(ranks)]


def share_forward(batch: TokenBatch, budget: Budget, *, ranks: int) -> list[Sequence[TokenBatch]]:
    """For each rank, its micro-batches of one forward pass over the batch; the same number for all."""
    return [*split_for_ranks(batch, ranks, budget.max_tokens, budget.max_rows)]


def put_together(
    batch: TokenBatch, name: str, shares: Sequence[Sequence[TokenBatch]], results: Sequence[Sequence[Tensor]]
) -> Tensor:
    """(T,) in the order of ``batch`` from what each rank answered for its micro-batches."""
    pairs = [
        (micro, values)
        for share, answers in zip(shares, results, strict=True)
        for micro, values in zip(share, answers, strict=True)
    ]
    return gather_tokens(batch, name, pairs)


def slim(batch: TokenBatch, tokens: Sequence[str], rows: Sequence[str] = ("index", "weight")) -> TokenBatch:
    """Only the columns that a forward needs, so that no others travel."""
    return TokenBatch(
        {name: batch.tokens[name] for name in tokens if name in batch.tokens},
        {name: batch.rows[name] for name in rows if name in batch.rows},
        batch.cu_seqlens,
    )
