"""What the trainer holds for each role: typed, timed, a method for each line of the step.

The controller cuts the batch, the ranks compute.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import ray
from ray import ObjectRef
from torch import Tensor

from laurel.algos.table import build_token_choice
from laurel.batch.token_batch import TokenBatch
from laurel.config.tree import Config
from laurel.learner.disk import Entry
from laurel.tracking.timer import Timer
from laurel.workers.dispatch import (
    Budget,
    UpdatePlan,
    log_prob_budget,
    put_together,
    share_forward,
    share_updates,
    slim,
    update_budget,
)
from laurel.workers.group import Started, WorkerGroup
from laurel.workers.saving import Rehearsal, Trained
from laurel.workers.session import Say

# What travels to a rank: the columns that its forward or its loss reads.
_FORWARD = ("input_ids", "position_ids", "response_mask")
_POLICY_UPDATE = (*_FORWARD, "old_log_probs", "ref_log_probs", "advantages", "rollout_log_probs", "rollout_is_weights")
_VALUE_UPDATE = (*_FORWARD, "values", "returns")
_ROWS = ("index", "group", "weight")


class ActorClient:
    """The policy that learns. ``step`` tells the training step, on which alone (with the seed) shuffling depends."""

    def __init__(self, group: WorkerGroup, config: Config, *, timer: Timer, step: Callable[[], int]):
        section, trainer = config.actor_rollout_ref, config.trainer
        actor = section.actor
        self.group, self.timer, self.step = group, timer, step
        self.budget = log_prob_budget(section.rollout)
        self.choose = build_token_choice(config)
        self.plan = UpdatePlan(
            actor.ppo_mini_batch_size, actor.ppo_epochs, actor.shuffle, trainer.seed, update_budget(actor)
        )

    def log_probs(self, batch: TokenBatch) -> Tensor:
        """(T,) of the policy as it is now; 0 at tokens that were not sampled."""
        with self.timer("old_log_prob"):
            shares, refs = _shares(self.group, batch, self.budget)
            answers = self.group.run("old log-probs", lambda actor, rank: actor.log_probs.remote(refs[rank]))
            return put_together(batch, "old_log_probs", shares, answers)

    def logit_grad_squares(self, batch: TokenBatch) -> Tensor:
        """(T,) squared norm of each log-probability's gradient in the logits; 0 at tokens that were not sampled."""
        with self.timer("logit_grads"):
            shares, refs = _shares(self.group, batch, self.budget)
            answers = self.group.run("logit grads", lambda actor, rank: actor.logit_grad_squares.remote(refs[rank]))
            return put_together(batch, "logit_grad_squares", shares, answers)

    def update(self, batch: TokenBatch) -> dict[str, float]:
        """One optimizer update per mini-batch and epoch; metrics are means over updates."""
        with self.timer("update_actor"):
            mini = slim(batch, _POLICY_UPDATE, _ROWS).with_(chosen=self.choose(batch, step=self.step()))
            shares = share_updates(mini, self.plan, step=self.step(), ranks=self.group.world)
            refs = [ray.put(share) for share in shares]
            metrics = self.group.run("the actor's update", lambda actor, rank: actor.update_actor.remote(refs[rank]))[0]
            self.group.tell()
            return metrics

    def rehearse(self, folder: Path) -> list[Rehearsal]:
        return self.group.run("rehearsing a save", lambda actor, rank: actor.rehearse.remote("actor", folder))

    def save(self, folder: Path, *, copied: bool) -> Writing:
        return save(self.group, "actor", folder, copied=copied)

    def load(self, folder: Path) -> None:
        self.group.run("loading the actor", lambda actor, rank: actor.load.remote("actor", folder))


class RefClient:
    """The frozen reference policy."""

    def __init__(self, group: WorkerGroup, config: Config, *, timer: Timer):
        self.group, self.timer = group, timer
        self.budget = log_prob_budget(config.actor_rollout_ref.ref)

    def log_probs(self, batch: TokenBatch) -> Tensor:
        """(T,) of the reference; 0 at tokens that were not sampled."""
        with self.timer("ref"):
            shares, refs = _shares(self.group, batch, self.budget)
            answers = self.group.run("reference log-probs", lambda actor, rank: actor.ref_log_probs.remote(refs[rank]))
            return put_together(batch, "ref_log_probs", shares, answers)


class CriticClient:
    """The value model. It shuffles as the actor does (``actor.shuffle``), with an order of the same seed and step."""

    def __init__(self, group: WorkerGroup, config: Config, *, timer: Timer, step: Callable[[], int]):
        critic, actor = config.critic, config.actor_rollout_ref.actor
        self.group, self.timer, self.step = group, timer, step
        self.plan = UpdatePlan(
            critic.ppo_mini_batch_size or actor.ppo_mini_batch_size,
            critic.ppo_epochs or actor.ppo_epochs,
            actor.shuffle,
            config.trainer.seed,
            update_budget(critic),
        )

    def values(self, batch: TokenBatch) -> Tensor:
        """(T,): value of the state that each token was sampled from; 0 at tokens that were not sampled."""
        with self.timer("values"):
            shares, refs = _shares(self.group, batch, self.plan.budget)
            answers = self.group.run("values", lambda actor, rank: actor.values.remote(refs[rank]))
            return put_together(batch, "values", shares, answers)

    def update(self, batch: TokenBatch) -> dict[str, float]:
        """One optimizer update per mini-batch and epoch; metrics are means over updates."""
        with self.timer("update_critic"):
            mini = slim(batch, _VALUE_UPDATE, _ROWS)
            shares = share_updates(mini, self.plan, step=self.step(), ranks=self.group.world)
            refs = [ray.put(share) for share in shares]
            return self.group.run("the critic's update", lambda actor, rank: actor.update_critic.remote(refs[rank]))[0]

    def rehearse(self, folder: Path) -> list[Rehearsal]:
        return self.group.run("rehearsing a save", lambda actor, rank: actor.rehearse.remote("critic", folder))

    def save(self, folder: Path, *, copied: bool) -> Writing:
        return save(self.group, "critic", folder, copied=copied)

    def load(self, folder: Path) -> None:
        self.group.run("loading the critic", lambda actor, rank: actor.load.remote("critic", folder))


@dataclass(frozen=True)
class Writing:
    """A role that its ranks write; RoleWriting of trainer/roles.py."""

    started: Started

    def files(self, say: Say) -> dict[str, Entry]:
        """Waits. The files of all ranks. Raises SaveError, or what ended a rank."""
        return {name: entry for files in self.started.answers(say) for name, entry in files.items()}


def save(group: WorkerGroup, role: Trained, folder: Path, *, copied: bool) -> Writing:
    """Take a copy of the role's state (or, not ``copied``, what must be written before training goes on), and have it
    written."""
    group.run(f"copying the {role} to be saved", lambda actor, rank: actor.snapshot.remote(role, copied))
    return Writing(group.start(f"writing the {role}", lambda actor, rank: actor.write.remote(role, folder)))


class WeightsClient:
    """How new weights reach the engines: ``publish`` stages a version, the next ``awake`` delivers it."""

    def __init__(self, group: WorkerGroup, *, timer: Timer):
        self.group, self.timer = group, timer
        self.staged: int | None = None
        self.version: int | None = None

    def publish(self, version: int) -> dict[str, float]:
        """Stage the actor's weights as ``version``. They are read when they are delivered, before the next update."""
        self.staged = version
        return {}

    @contextmanager
    def awake(self) -> Iterator[None]:
        """Within it the engines hold the staged weights, compared tensor by tensor, and memory for their cache."""
        if self.staged is None and self.version is None:
            raise ValueError("no weights were published; call publish(version) before the engines sample")
        staged = self.staged
        with self.timer("publish"):
            self.group.run("weights in the engines", lambda actor, rank: actor.wake.remote(staged))
        self.version, self.staged = (self.version if staged is None else staged), None
        yield  # after an error the engines stay as they are: requests may be pending, and the error is what counts
        self.group.run("the engines to sleep", lambda actor, rank: actor.sleep.remote())


def _shares(
    group: WorkerGroup, batch: TokenBatch, budget: Budget
) -> tuple[list[Sequence[TokenBatch]], list[ObjectRef[Sequence[TokenBatch]]]]:
    """The micro-batches of each rank, and each rank's in the object store."""
    shares = share_forward(slim(batch, _FORWARD, _ROWS), budget, ranks=group.world)
    return shares, [ray.put(share) for share in shares]
