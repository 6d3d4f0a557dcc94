"""What one rank's process hosts: learners and an engine, and how weights pass between them. Knows no Ray."""

from __future__ import annotations

import asyncio
import os
import queue
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import nn

from laurel.config.tree import Config
from laurel.learner.dist import Meeting, Ranks, join, leave
from laurel.learner.learner import PolicyLearner, ValueLearner, compute_dtype
from laurel.models.load import load_policy
from laurel.rollout.engine import Engine
from laurel.types import Completion, LaurelError, Request
from laurel.weights.ways import Buckets, SameMemory
from laurel.workers.engines import build_engine
from laurel.workers.fit import Fit
from laurel.workers.saving import Saving

COLLECTIVE_TIMEOUT_S = 1800.0  # Ray tells of a dead rank within seconds; this only ends what nobody watches any more
_DEBUGGING_TIMEOUT_S = 7 * 24 * 3600.0


def collective_timeout_s(environment: Mapping[str, str]) -> float:
    """How long a rank waits for the others, which a debugger may hold for as long as a person reads."""
    debugging = environment.get("RAY_DEBUG_POST_MORTEM") == "1" or bool(environment.get("RAY_DEBUG"))
    return _DEBUGGING_TIMEOUT_S if debugging else COLLECTIVE_TIMEOUT_S


@dataclass(frozen=True)
class Updates:
    """Optimizer updates of the whole run, for learning rate schedules."""

    actor: int
    critic: int


class LocalEngine(Engine, Protocol):
    """An engine in this process, which takes requests from any thread."""

    def submit_all(self, requests: Sequence[Request]) -> list[Future[Completion]]: ...

    def close(self) -> None: ...


class RankHost:
    """One rank. Methods of the learners and ``wake`` are collective: every rank calls them in the same order.

    ``ref`` is there only if the loss or the reward has a KL term, ``critic`` only if it is enabled.
    """

    actor: PolicyLearner
    engine: LocalEngine
    way: SameMemory | Buckets

    def __init__(self, config: Config, *, rank: int, world: int, device: str):
        self.config, self.rank, self.world, self.device = config, rank, world, torch.device(device)
        self.meeting: Meeting | None = None
        self.saving = Saving()
        self._ref: PolicyLearner | None = None
        self._critic: ValueLearner | None = None

    def open_meeting(self, host: str) -> str:
        """Rank 0 of several opens the store that all meet at, on a port that the system chooses; "" elsewhere."""
        if self.rank != 0 or self.world == 1:
            return ""
        self.meeting = Meeting(host, self.world, collective_timeout_s(os.environ))
        return self.meeting.address

    def build(self, meeting: str, updates: Updates, fit: Fit | None = None) -> None:
        """Join the other ranks and load what this rank hosts; ``fit`` is what memory was planned to hold."""
        fit = fit or Fit(self.config)
        ranks = join(
            rank=self.rank,
            world=self.world,
            meeting=self.meeting or meeting or None,
            device=self.device,
            timeout_s=collective_timeout_s(os.environ),
        )
        self.device = ranks.device
        torch.manual_seed(self.config.trainer.seed)
        self.actor = PolicyLearner("actor", self.config, ranks=ranks, total_updates=updates.actor)
        self.actor.keep_logits = fit.keep_logits
        if self.config.needs_reference:
            self._ref = PolicyLearner("ref", self.config, ranks=ranks)
        if self.config.critic.enable:
            self._critic = ValueLearner(self.config, ranks=ranks, total_updates=updates.critic)
        module, self.way = self._weights_for_engine(ranks)
        self.engine = build_engine(
            self.config,
            module,
            device=ranks.device,
            world=self.world,
            dtype=compute_dtype(ranks.device),
            sequences=fit.sequences,
        )
        self.sleep()

    def _weights_for_engine(self, ranks: Ranks) -> tuple[nn.Module, SameMemory | Buckets]:
        """The module that the native engine runs: the learner's own on one rank, else a whole copy that buckets fill.
        Other engines have tensors of their own, and the learner's tell them names and shapes."""
        native = self.config.actor_rollout_ref.rollout.name == "native"
        if native and self.world == 1:
            return self.actor.module, SameMemory(self.actor.module)
        dtype = compute_dtype(ranks.device)
        by_buckets = Buckets(self.actor.module, dtype=dtype, device=ranks.device)
        if not native:
            return self.actor.module, by_buckets
        copy = load_policy(self.config.actor_rollout_ref.model, dtype=dtype, device=ranks.device)
        return copy.requires_grad_(False), by_buckets

    @property
    def ref(self) -> PolicyLearner:
        if self._ref is None:
            raise LaurelError(
                "this run has no reference policy: neither actor.use_kl_loss nor algorithm.use_kl_in_reward is on"
            )
        return self._ref

    @property
    def critic(self) -> ValueLearner:
        if self._critic is None:
            raise LaurelError("this run has no critic: critic.enable is off")
        return self._critic

    def learner(self, role: Literal["actor", "critic"]) -> PolicyLearner | ValueLearner:
        return self.actor if role == "actor" else self.critic

    def wake(self, version: int | None) -> None:
        """The engine regains its memory: weights first, then its cache. With a ``version`` the actor's weights are
        delivered as that version and verified in between; None keeps what the engine holds."""

        async def deliver() -> None:
            await self.engine.wake("weights")
            if version is not None:
                await self.way.publish(self.engine, version)
            await self.engine.wake("cache")

        asyncio.run(deliver())

    def sleep(self) -> None:
        """The engine gives its cache's memory back, unless rollout.free_cache_engine is off."""
        if self.config.actor_rollout_ref.rollout.free_cache_engine:
            asyncio.run(self.engine.sleep())

    def generate(self, requests: Sequence[Request]) -> Iterator[list[Completion]]:
        """Completions as they finish, in lists of what is there; an error of the engine rises here."""
        done: queue.SimpleQueue[Future[Completion]] = queue.SimpleQueue()
        for future in self.engine.submit_all(requests):
            future.add_done_callback(done.put)
        left = len(requests)
        while left:
            ready = [done.get()]
            while not done.empty():
                ready.append(done.get())
            left -= len(ready)
            yield [future.result() for future in ready]

    def abort(self, ids: Sequence[str]) -> None:
        asyncio.run(self.engine.abort(ids))

    def close(self) -> None:
        """Stop the engine and leave the process group."""
        self.engine.close()
        leave()
