"""One role on one rank: forward passes and optimizer updates on this rank's share of the data.

Every rank calls the same methods with as many micro-batches as every other (batch/pack.py sees to that). Losses are
sums divided by counts of the whole update over all ranks, so the gradient does not depend on ranks or micro-batches.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from laurel.algos.table import build_policy_loss, build_value_loss
from laurel.batch.pack import MiniBatch
from laurel.batch.token_batch import TokenBatch
from laurel.config.tree import Config, Fsdp, Model, Optim
from laurel.learner.dist import ONE_RANK, Ranks
from laurel.learner.forward import PolicyForward, ValueForward, response_positions
from laurel.learner.optim import Optimizer, Step
from laurel.learner.parallelize import free_gathered, parallelize, shard_groups
from laurel.learner.shards import load_role, save_role
from laurel.learner.utilization import Utilization
from laurel.models.load import backbone_of, load_policy, load_value_model
from laurel.tracking.metrics import combine

MicroBatches = Sequence[TokenBatch]


class _Learner:
    """What both kinds of learner share: a root module over one or many ranks, and perhaps an optimizer."""

    role: str
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
                offload=fsdp.optimizer_offload,
            )

    @contextmanager
    def _inference(self) -> Iterator[None]:
        self.root.eval()
        with torch.no_grad():
            yield
        free_gathered(self.root)

    def _update(self, mini_batches: Iterable[MiniBatch]) -> dict[str, float]:
        """One optimizer update for each mini-batch; metrics combined over updates, the same on every rank."""
        if self.optimizer is None:
            raise ValueError(f"the {self.role} is frozen and cannot be updated")
        parts: list[dict[str, Tensor]] = []  # what this rank adds to the metrics of each update
        steps: list[Step] = []
        self.root.train()
        self.utilization.start()
        for mini in mini_batches:
            sums: dict[str, Tensor] = {}
            for micro in mini.micro_batches:
                self.utilization.add(micro)
                loss, metrics = self._loss(micro.to(self.device), mini)
                # FSDP averages gradients over ranks, and ours must be their sum
                (loss * self.ranks.world).backward()
                for name, value in metrics.items():
                    sums[name] = sums[name] + value.double() if name in sums else value.double()
            parts.append(sums)
            steps.append(self.optimizer.step())
        self.root.eval()
        if not steps:
            raise ValueError(f"the {self.role} was asked to update without a mini-batch")
        combined = combine(
            self.ranks.sum({name: float(value) for name, value in part.items()})
            | {
                f"{self.role}/grad_norm": step.grad_norm,
                f"{self.role}/lr": step.learning_rate,
                f"{self.role}/skipped_updates": float(step.skipped),
            }
            for part, step in zip(parts, steps, strict=True)
        )
        return combined | self.utilization.metrics(self.ranks)

    def _loss(self, micro: TokenBatch, mini: MiniBatch) -> tuple[Tensor, dict[str, Tensor]]:
        raise NotImplementedError

    def save(self, folder: Path) -> None:
        """Write this rank's part of the checkpoint of this role into ``folder``; every rank must call it."""
        save_role(self, folder)

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

    def log_probs(self, micro_batches: MicroBatches) -> list[Tensor]:
        """For each micro-batch (T,) float32 on the CPU; 0 at tokens that were not sampled."""
        found = []
        with self._inference():
            for micro in micro_batches:
                batch = micro.to(self.device)
                found.append(self.root(batch, response_positions(batch), entropy=False)[0].cpu())
        return found

    def update(self, mini_batches: Sequence[MiniBatch]) -> dict[str, float]:
        """One optimizer update for each. Without a column old_log_probs the update's own log-probabilities stand in
        (the ratio is 1), which is right for exactly one update per batch."""
        if len(mini_batches) > 1 and not mini_batches[0].micro_batches[0].has("old_log_probs"):
            raise ValueError(f"{len(mini_batches)} updates on one batch need its column old_log_probs")
        return self._update(mini_batches)

    def _loss(self, micro: TokenBatch, mini: MiniBatch) -> tuple[Tensor, dict[str, Tensor]]:
        log_probs, entropy = self.root(micro, response_positions(micro), entropy=True)
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
        )
        if micro.has("rollout_log_probs") and not micro.has("old_log_probs"):
            # Else the controller has both and compares them itself
            counted = micro.response_mask & (micro.weight[micro.row_of_token] > 0)
            gap = (micro.rollout_log_probs - log_probs.detach()).abs()
            metrics["rollout/log_prob_diff/mean"] = torch.where(counted, gap, 0.0).sum() / mini.token_count
        return loss, metrics


class ValueLearner(_Learner):
    """The critic."""

    role = "critic"

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
        found = []
        with self._inference():
            for micro in micro_batches:
                batch = micro.to(self.device)
                found.append(self.root(batch, response_positions(batch)).cpu())
        return found

    def update(self, mini_batches: Sequence[MiniBatch]) -> dict[str, float]:
        """One optimizer update for each; micro-batches need the columns values (the old ones) and returns."""
        return self._update(mini_batches)

    def _loss(self, micro: TokenBatch, mini: MiniBatch) -> tuple[Tensor, dict[str, Tensor]]:
        return self.loss(
            values=self.root(micro, response_positions(micro)),
            old_values=micro.values,
            returns=micro.returns,
            mask=micro.response_mask,
            row_of_token=micro.row_of_token,
            weight=micro.weight,
            token_count=mini.token_count,
            row_count=mini.row_count,
        )


def compute_dtype(device: torch.device) -> torch.dtype:
    """What forwards compute in."""
    return torch.bfloat16 if device.type == "cuda" else torch.float32


def storage_dtype(ranks: Ranks, *, trained: bool) -> torch.dtype:
    """What parameters are held in: shards of a trained module are the float32 masters themselves; one rank's module is
    shared with the engine and held as it is computed with."""
    return torch.float32 if trained and ranks.world > 1 else compute_dtype(ranks.device)
