"""What the training step asks of its parts, and the parts that have nothing to do.

A role that an algorithm does not need is a null object chosen when the run is built, so the step has no branches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from laurel.algos.correction import NoCorrection
from laurel.batch.token_batch import TokenBatch
from laurel.trainer.run_state import RunState
from laurel.types import Group, Prompt
from laurel.workers.saving import Rehearsal

Metrics = dict[str, float]


class RoleWriting(Protocol):
    """A role's part of a checkpoint while ranks write it."""

    def files(self, say: Callable[[str], None]) -> Mapping[str, Mapping[str, Any]]:
        """Waits. Size and checksum of each file, by its path within the role's folder. Raises SaveError."""


class SavedRole(Protocol):
    def rehearse(self, folder: Path) -> Sequence[Rehearsal]:
        """Every rank leaves a small file in ``folder``. Raises SaveError if one may not."""

    def save(self, folder: Path, *, copied: bool) -> RoleWriting:
        """Have ``folder`` written; training may go on at once if it is from a copy."""

    def load(self, folder: Path) -> None: ...


class ActorRole(SavedRole, Protocol):
    def log_probs(self, batch: TokenBatch) -> Tensor | None:
        """(T,) of the policy before the update; None if the update's own forward gives them (one update per batch)."""

    def update(self, batch: TokenBatch) -> Metrics: ...


class GradientsRole(Protocol):
    def logit_grad_squares(self, batch: TokenBatch) -> Tensor | None:
        """(T,) squared norm of the gradient of each token's log-probability in the logits, before the update; None if
        the algorithm does not ask for it."""


class RefRole(Protocol):
    def log_probs(self, batch: TokenBatch) -> Tensor | None:
        """(T,) of the frozen reference policy."""


class CriticRole(SavedRole, Protocol):
    def values(self, batch: TokenBatch) -> Tensor | None:
        """(T,) value of the state that each token is sampled from; None without a value model."""

    def update(self, batch: TokenBatch) -> Metrics: ...


class RolloutsRole(Protocol):
    def awake(self) -> AbstractContextManager[None]:
        """Within it, engines hold the published weights, verified, and memory for their cache."""

    def collect(self, draw: Callable[[], Sequence[Prompt]], *, step: int) -> tuple[list[Group], Metrics]:
        """The groups that ``step`` learns from, and metrics of how they came about; ``draw`` gives the next prompts."""

    def answer(self, prompts: Sequence[Prompt]) -> list[Group]:
        """Groups sampled as validation wants them."""


class WeightsRole(Protocol):
    def publish(self, version: int) -> Metrics:
        """Stage the actor's weights as ``version``; the next awake() delivers them."""


class CorrectionRole(Protocol):
    def apply(self, batch: TokenBatch) -> tuple[TokenBatch, Metrics]:
        """What of the batch trains, and with which weights; and metrics of how far rollout and learner are apart."""


class NoRef:
    """No reference policy: echoes the old log-probabilities, so that the KL divergence is 0."""

    def log_probs(self, batch: TokenBatch) -> Tensor | None:
        return batch.old_log_probs if batch.has("old_log_probs") else None


class NoGradients:
    """The algorithm does not ask for logit gradients: the batch gets no column of them."""

    def logit_grad_squares(self, batch: TokenBatch) -> None:
        return None


class NoCritic:
    """No value model: the batch gets no column of values."""

    def values(self, batch: TokenBatch) -> None:
        return None

    def update(self, batch: TokenBatch) -> Metrics:
        return {}

    def rehearse(self, folder: Path) -> list[Rehearsal]:
        return []

    def save(self, folder: Path, *, copied: bool) -> RoleWriting:
        return NothingToWrite()

    def load(self, folder: Path) -> None:
        pass


class NothingToWrite:
    """A role that is in no checkpoint."""

    def files(self, say: Callable[[str], None]) -> dict[str, Mapping[str, Any]]:
        return {}


class ActorOfOneUpdate:
    """An actor that is updated once per batch: the update's own forward gives the old log-probabilities (the ratio is
    exactly 1), so none are computed before.
    """

    def __init__(self, actor: ActorRole):
        self.update = actor.update
        self.rehearse, self.save, self.load = actor.rehearse, actor.save, actor.load

    def log_probs(self, batch: TokenBatch) -> None:
        return None


class ActorOfRollout:
    """An actor whose old log-probabilities are those that the engines reported while sampling."""

    def __init__(self, actor: ActorRole):
        self.update = actor.update
        self.rehearse, self.save, self.load = actor.rehearse, actor.save, actor.load

    def log_probs(self, batch: TokenBatch) -> Tensor:
        return batch.rollout_log_probs


class ActorAfterWarmup:
    """An actor that stays as it is during the first ``steps`` steps, while the critic learns to judge it."""

    def __init__(self, actor: ActorRole, state: RunState, steps: int):
        self.actor, self.state, self.steps = actor, state, steps
        self.log_probs = actor.log_probs
        self.rehearse, self.save, self.load = actor.rehearse, actor.save, actor.load

    def update(self, batch: TokenBatch) -> Metrics:
        return self.actor.update(batch) if self.state.step > self.steps else {}


@dataclass(frozen=True)
class Roles:
    actor: ActorRole
    ref: RefRole
    critic: CriticRole
    rollouts: RolloutsRole
    weights: WeightsRole
    correction: CorrectionRole = field(default_factory=NoCorrection)
    gradients: GradientsRole = field(default_factory=NoGradients)
