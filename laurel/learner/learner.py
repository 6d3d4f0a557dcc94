"""One role on one rank: forward passes and optimizer updates on this rank's share of the data.

Every rank calls the same methods with as many micro-batches as every other (batch/pack.py sees to that). Losses are
sums divided by counts of the whole update over all ranks, so the gradient does not depend on ranks or micro-batches.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from laurel.algos.correction import effective_sample_size, gauge_parts
from laurel.algos.table import build_policy_loss, build_value_loss
from laurel.batch.pack import MiniBatch
from laurel.batch.token_batch import TokenBatch
from laurel.config.tree import Config, Fsdp, Model, Optim
from laurel.learner.dist import ONE_RANK, Ranks
from laurel.learner.forward import LaidOut, PolicyForward, ValueForward, lay_out
from laurel.learner.memory import SmallerPieces
from laurel.learner.optim import Optimizer, Step
from laurel.learner.parallelize import free_gathered, parallelize, shard_groups
from laurel.learner.shards import Snapshot, load_role, save_role, snapshot_bytes, snapshot_role
from laurel.learner.utilization import Utilization
from laurel.models.layer import train_fast
from laurel.models.load import backbone_of, load_policy, load_value_model
from laurel.tracking.metrics import combine, declared

logger = logging.getLogger("laurel")
MicroBatches = Sequence[TokenBatch]


class _Learner:
    """What both kinds of learner share: a root module over one or many ranks, and perhaps an optimizer."""

    role: str
    budget: str  # the setting that bounds its micro-batches
    module: Any  # the Hugging Face module; on one rank a plain one

    def __init__(
        self,
        root: PolicyForward | ValueForward,
        model: Model,
        fsdp: Fsdp,
        *,
        ranks: Ranks,
        optim: Optim | None,
        total_updates: int,
    ):
        self.ranks, self.model, self.fsdp = ranks, model, fsdp
        self.root = root
        self.module = root.module
        self.device = ranks.device
        self.utilization = Utilization(self.role, root.module, ranks.device)
        self.copies = 1
        self.pieces = SmallerPieces(ranks.world, self.budget)
        self.keep_logits = 0
        """Tokens of a micro-batch whose logits are held for the backward pass."""
        if ranks.device.type == "cuda":
            reason = train_fast(backbone_of(self.module))
            if reason is not None:
                logger.warning(
                    "the %s trains slower than it could, through its own forward pass: %s", self.role, reason
                )
        if ranks.world > 1:
            self.copies = shard_groups(ranks.world, fsdp.fsdp_size)[0]
            layers = set(backbone_of(self.module)._no_split_modules or ())
            parallelize(root, layers, ranks=ranks, fsdp=fsdp, compute=compute_dtype(ranks.device))
            gc.collect()  # the whole copy that the shards were cut from
        else:
            root.to(ranks.device)
        root.eval()
        self.optimizer: Optimizer | None = None
        if optim is None:
            root.requires_grad_(False)
        else:
            self.optimizer = Optimizer(
                self.module.named_parameters(),
                optim,
                total_updates=total_updates,
                ranks=ranks,
                copies=self.copies,
                offload=bool(fsdp.optimizer_offload) and not (fsdp.param_offload and ranks.world > 1),
            )

    def _update(self, mini_batches: Iterable[MiniBatch]) -> dict[str, float]:
        """One optimizer update for each mini-batch; metrics combined over updates, the same on every rank."""
        if self.optimizer is None:
            raise ValueError(f"the {self.role} is frozen and cannot be updated")
        parts: list[dict[str, Tensor]] = []  # what this rank adds to the metrics of each update
        steps: list[Step] = []
        self.root.train()
        self.utilization.start()
        for mini in mini_batches:
            sums, flops = self.pieces.run(mini.micro_batches, partial(self._backward, mini, self.optimizer))
            self.utilization.add(flops)
            parts.append(sums)
            steps.append(self.optimizer.step())
        self.root.eval()
        if not steps:
            raise ValueError(f"the {self.role} was asked to update without a mini-batch")
        combined = combine(
            self._over_ranks(part)
            | {
                f"{self.role}/grad_norm": step.grad_norm,
                f"{self.role}/lr": step.learning_rate,
                f"{self.role}/skipped_updates": float(step.skipped),
            }
            for part, step in zip(parts, steps, strict=True)
        )
        return combined | self.utilization.metrics(self.ranks)

    def _backward(
        self, mini: MiniBatch, optimizer: Optimizer, pieces: list[list[TokenBatch]]
    ) -> tuple[dict[str, Tensor], float]:
        """Gradients of an update, added up anew; what this rank adds to its metrics, and FLOPs."""
        optimizer.forget()
        sums: dict[str, Tensor] = {}
        flops = 0.0
        for micro in (piece for parts in pieces for piece in parts):
            laid = lay_out(micro, self.device)
            flops += self.utilization.flops(micro, laid.queries)
            loss, metrics = self._loss(laid, mini)
            # FSDP averages gradients over ranks, and ours must be their sum
            (loss * self.ranks.world).backward()
            for name, value in metrics.items():
                join = torch.maximum if _is_largest(name) else torch.add
                sums[name] = join(sums[name], value.double()) if name in sums else value.double()
        return sums, flops

    def _infer(self, micro_batches: MicroBatches, forward: Callable[[LaidOut], Tensor]) -> list[Tensor]:
        """A forward without gradients over each micro-batch, (T,) float32 on the CPU."""

        def work(pieces: list[list[TokenBatch]]) -> list[Tensor]:
            return [torch.cat([forward(lay_out(piece, self.device)) for piece in parts]) for parts in pieces]

        self.root.eval()
        with torch.no_grad():
            found = self.pieces.run(micro_batches, work)
        free_gathered(self.root)
        return [one.cpu() for one in found]

    def _over_ranks(self, part: dict[str, Tensor]) -> dict[str, float]:
        """The metrics of one update, from what this rank adds to them."""
        values = {name: float(value) for name, value in part.items()}
        largest = {name: self.ranks.max(values.pop(name)) for name in sorted(values) if _is_largest(name)}
        return self.ranks.sum(values) | largest

    def _loss(self, laid: LaidOut, mini: MiniBatch) -> tuple[Tensor, dict[str, Tensor]]:
        raise NotImplementedError

    def save(self, folder: Path) -> None:
        """Write this rank's part of the checkpoint of this role into ``folder``; every rank must call it."""
        save_role(self, folder)

    def snapshot(self, *, copied: bool) -> Snapshot:
        """This rank's part as it is now, to be written; ``copied`` lets training go on before that."""
        return snapshot_role(self, copied=copied)

    @property
    def snapshot_bytes(self) -> int:
        return snapshot_bytes(self)

    def load(self, folder: Path) -> None:
        """Restore parameters, moments and counts, whatever number of ranks wrote them; every rank must call it."""
        load_role(self, folder)


class PolicyLearner(_Learner):
    """The actor, or the frozen reference."""

    def __init__(
        self, role: Literal["actor", "ref"], config: Config, *, ranks: Ranks = ONE_RANK, total_updates: int = 1
    ):
        """``total_updates``: optimizer updates of the whole run, for the learning rate's schedule."""
        self.role = role
        part = config.actor_rollout_ref
        self.budget = "actor_rollout_ref." + (
            "actor.ppo_max_token_len_per_gpu" if role == "actor" else "ref.log_prob_max_token_len_per_gpu"
        )
        trained = role == "actor"
        module = load_policy(
            part.model,
            dtype=storage_dtype(ranks, trained=trained),
            device=ranks.device if ranks.world == 1 else "cpu",
        )
        super().__init__(
            PolicyForward(module, part.rollout.temperature),
            part.model,
            part.actor.fsdp_config if trained else part.ref.fsdp_config,
            ranks=ranks,
            optim=part.actor.optim if trained else None,
            total_updates=total_updates,
        )
        self.loss = build_policy_loss(config)
        self.bypass = config.algorithm.rollout_correction.bypass_mode
        self.gauged: MiniBatch | None = None

    def log_probs(self, micro_batches: MicroBatches) -> list[Tensor]:
        """For each micro-batch (T,) float32 on the CPU; 0 at tokens that were not sampled."""
        return self._forwards(micro_batches, grad_squares=False)

    def logit_grad_squares(self, micro_batches: MicroBatches) -> list[Tensor]:
        """As ``log_probs``: the squared norm of each log-probability's gradient in the logits."""
        return self._forwards(micro_batches, grad_squares=True)

    def _forwards(self, micro_batches: MicroBatches, *, grad_squares: bool) -> list[Tensor]:
        return self._infer(micro_batches, lambda laid: self.root(laid, grad_squares=grad_squares)[0])

    def update(self, mini_batches: Sequence[MiniBatch]) -> dict[str, float]:
        """One optimizer update for each. Without a column old_log_probs the update's own log-probabilities stand in
        (the ratio is 1), which is right for exactly one update per batch."""
        known = mini_batches[0].micro_batches[0].has("old_log_probs") if mini_batches else True
        if len(mini_batches) > 1 and not known:
            raise ValueError(f"{len(mini_batches)} updates on one batch need its column old_log_probs")
        # The first update sees the policy as it was; elsewhere the controller has its log-probabilities and compares
        self.gauged = mini_batches[0] if mini_batches and (self.bypass or not known) else None
        metrics = self._update(mini_batches)
        return metrics | effective_sample_size(metrics)

    def _loss(self, laid: LaidOut, mini: MiniBatch) -> tuple[Tensor, dict[str, Tensor]]:
        micro = laid.batch
        log_probs, entropy = self.root(laid, entropy=True, keep_logits=self.keep_logits)
        assert entropy is not None
        loss, metrics = self.loss(
            log_probs=log_probs,
            old_log_probs=micro.old_log_probs if micro.has("old_log_probs") else log_probs.detach(),
            ref_log_probs=micro.ref_log_probs if micro.has("ref_log_probs") else None,
            entropy=entropy if self.loss.needs_entropy else entropy.detach(),
            advantages=micro.advantages,
            mask=micro.response_mask,
            row_of_token=micro.row_of_token,
            weight=micro.weight,
            token_count=mini.token_count,
            row_count=mini.row_count,
            rollout_is_weights=micro.rollout_is_weights if micro.has("rollout_is_weights") else None,
            chosen=micro.chosen if micro.has("chosen") else None,
        )
        if mini is self.gauged and micro.has("rollout_log_probs"):
            metrics |= gauge_parts(
                old_log_probs=log_probs.detach(),
                rollout_log_probs=micro.rollout_log_probs,
                active=micro.response_mask & (micro.weight[micro.row_of_token] > 0),
                count=mini.token_count,
            )
        return loss, metrics


class ValueLearner(_Learner):
    """The critic."""

    role = "critic"
    budget = "critic.ppo_max_token_len_per_gpu"

    def __init__(self, config: Config, *, ranks: Ranks = ONE_RANK, total_updates: int = 1):
        part = config.critic
        model = part.model
        if model.path is None:
            model = model.model_copy(update={"path": config.actor_rollout_ref.model.path})
        module = load_value_model(
            model, dtype=storage_dtype(ranks, trained=True), device=ranks.device if ranks.world == 1 else "cpu"
        )
        super().__init__(
            ValueForward(module), model, part.fsdp_config, ranks=ranks, optim=part.optim, total_updates=total_updates
        )
        self.loss = build_value_loss(config)

    def values(self, micro_batches: MicroBatches) -> list[Tensor]:
        """For each micro-batch (T,) float32 on the CPU: the value of the state that each token was sampled from."""
        return self._infer(micro_batches, self.root)

    def update(self, mini_batches: Sequence[MiniBatch]) -> dict[str, float]:
        """One optimizer update for each; micro-batches need the columns values (the old ones) and returns."""
        return self._update(mini_batches)

    def _loss(self, laid: LaidOut, mini: MiniBatch) -> tuple[Tensor, dict[str, Tensor]]:
        micro = laid.batch
        return self.loss(
            values=self.root(laid),
            old_values=micro.values,
            returns=micro.returns,
            mask=micro.response_mask,
            row_of_token=micro.row_of_token,
            weight=micro.weight,
            token_count=mini.token_count,
            row_count=mini.row_count,
        )


def _is_largest(metric: str) -> bool:
    """Whether parts of a metric join to the largest of them; else they add up."""
    return declared(metric).reducer == "max"


def compute_dtype(device: torch.device) -> torch.dtype:
    """What forwards compute in."""
    return torch.bfloat16 if device.type == "cuda" else torch.float32


def storage_dtype(ranks: Ranks, *, trained: bool) -> torch.dtype:
    """What parameters are held in: shards of a trained module are the float32 masters themselves; one rank's module is
    shared with the engine and held as it is computed with."""
    return torch.float32 if trained and ranks.world > 1 else compute_dtype(ranks.device)
