"""The Ray actor of one rank: a shell around RankHost, which has the logic and knows no Ray.

Torch is imported in the actor, after its threads are set. Calls of one concurrency group run one after the other in one
thread: the learner's in ``learner``; checkpoints are written in ``saving``; replies stream in ``engine``; abort and
health answer at any time.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray
from ray.actor import ActorClass

from laurel.types import Completion, Request
from laurel.workers.failures import introduce, stacks_on_signal, writes_failures

if TYPE_CHECKING:
    from torch import Tensor

    from laurel.batch.pack import MiniBatch
    from laurel.batch.token_batch import TokenBatch
    from laurel.config.tree import Config
    from laurel.learner.disk import Entry
    from laurel.workers.fit import Fit
    from laurel.workers.host import RankHost, Updates
    from laurel.workers.saving import Rehearsal, Trained
    from laurel.workers.waiting import Member


@writes_failures
class Rank:
    """One rank's process: its learners and its engine. Made by WorkerGroup, called by the clients of group.py."""

    def __init__(self, environment: Mapping[str, str], ranks_on_host: int):
        os.environ.update(environment)
        stacks_on_signal()
        from laurel.workers.machine import settle
        from laurel.workers.notices import Notices

        self.threads = settle(ranks_on_host)
        self.heard = Notices.listen()
        self.host: RankHost
        self.node: str

    @ray.method(concurrency_group="health")
    def describe(self, rank: int, device: str) -> Member:
        from laurel.workers.machine import describe

        return describe(rank, device, self.threads)

    @ray.method(concurrency_group="health")
    def notices(self) -> list[str]:
        """Warnings since the last call."""
        return self.heard.take()

    @ray.method(concurrency_group="learner")
    def open(self, config: Config, rank: int, world: int, device: str) -> str:
        """First phase: rank 0 opens the meeting on a free port and returns its address; the others return ""."""
        from laurel.workers.host import RankHost

        self.host = RankHost(config, rank=rank, world=world, device=device)
        ip = self.node = ray.util.get_node_ip_address()
        introduce(rank, world, ip)
        return self.host.open_meeting(ip)

    @ray.method(concurrency_group="learner")
    def build(self, meeting: str, updates: Updates, fit: Fit) -> None:
        """Second phase: join the others, load models, make the engine."""
        self.host.build(meeting, updates, fit)

    @ray.method(concurrency_group="learner")
    def log_probs(self, micro_batches: Sequence[TokenBatch]) -> list[Tensor]:
        return self.host.actor.log_probs(micro_batches)

    @ray.method(concurrency_group="learner")
    def logit_grad_squares(self, micro_batches: Sequence[TokenBatch]) -> list[Tensor]:
        return self.host.actor.logit_grad_squares(micro_batches)

    @ray.method(concurrency_group="learner")
    def ref_log_probs(self, micro_batches: Sequence[TokenBatch]) -> list[Tensor]:
        return self.host.ref.log_probs(micro_batches)

    @ray.method(concurrency_group="learner")
    def values(self, micro_batches: Sequence[TokenBatch]) -> list[Tensor]:
        return self.host.critic.values(micro_batches)

    @ray.method(concurrency_group="learner")
    def update_actor(self, mini_batches: Sequence[MiniBatch]) -> dict[str, float]:
        return self.host.actor.update(mini_batches)

    @ray.method(concurrency_group="learner")
    def update_critic(self, mini_batches: Sequence[MiniBatch]) -> dict[str, float]:
        return self.host.critic.update(mini_batches)

    @ray.method(concurrency_group="learner")
    def rehearse(self, role: Trained, folder: Path) -> Rehearsal:
        from laurel.workers.saving import rehearse

        return rehearse(self.host.rank, self.node, self.host.learner(role), folder)

    @ray.method(concurrency_group="learner")
    def snapshot(self, role: Trained, copied: bool) -> None:
        self.host.saving.take(role, self.host.learner(role), copied=copied)

    @ray.method(concurrency_group="saving")
    def write(self, role: Trained, folder: Path) -> dict[str, Entry]:
        """Beside the learner's work: the snapshot is a copy."""
        return self.host.saving.write(role, folder)

    @ray.method(concurrency_group="learner")
    def load(self, role: Trained, folder: Path) -> None:
        self.host.learner(role).load(folder)

    @ray.method(concurrency_group="learner")
    def wake(self, version: int | None) -> None:
        self.host.wake(version)

    @ray.method(concurrency_group="learner")
    def sleep(self) -> None:
        self.host.sleep()

    @ray.method(concurrency_group="engine")
    def generate(self, requests: Sequence[Request]) -> Iterator[list[Completion]]:
        """Completions in lists, as they finish; Ray streams what a generator yields."""
        yield from self.host.generate(requests)

    @ray.method(concurrency_group="health")
    def abort(self, ids: Sequence[str]) -> None:
        self.host.abort(ids)

    @ray.method(concurrency_group="learner")
    def close(self) -> None:
        self.host.close()


# The engine's replies of training, validation and later calls may stream side by side, hence more than one thread.
_OPTIONS: dict[str, Any] = {
    "concurrency_groups": {"learner": 1, "saving": 1, "engine": 8, "health": 2},
    "max_restarts": 0,
    "max_task_retries": 0,
}
RemoteRank: ActorClass[Rank] = ray.remote(**_OPTIONS)(Rank)
