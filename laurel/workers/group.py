"""All ranks of a run: started on their nodes, called together, ended together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, cast

import ray
from ray import ObjectRef
from ray.actor import ActorHandle, ActorProxy
from ray.exceptions import RayError

from laurel.config.tree import Config
from laurel.types import LaurelError
from laurel.workers.environment import passed_environment
from laurel.workers.fit import Fit
from laurel.workers.host import Updates
from laurel.workers.notices import told
from laurel.workers.placement import Device, Node, Place, Placement, Wanted, reserve
from laurel.workers.session import Say
from laurel.workers.waiting import Member, gather
from laurel.workers.worker import Rank, RemoteRank

_CLOSE_S = 10.0


@dataclass(frozen=True)
class Handle:
    """One rank: its actor, and who it is."""

    actor: ActorProxy[Rank]
    member: Member


class WorkerGroup:
    """The ranks of one run, in rank order. A failure of one ends all, since the others would wait for it.

    Use it as a context manager, so that actors and placement end with the run.
    """

    fit: Fit
    """The settings that the ranks were built with, and what else they were told of their memory."""

    def __init__(self, handles: Sequence[Handle], placement: Placement, *, say: Say = print):
        self.handles, self.placement, self.say = tuple(handles), placement, say

    @classmethod
    def spawn(
        cls,
        config: Config,
        updates: Updates,
        *,
        alone: bool,
        say: Say = print,
        plan: Callable[[int], Fit] | None = None,
        examine: Callable[[Sequence[Node]], None] | None = None,
    ) -> WorkerGroup:
        """Reserve nodes, start a process per rank and build its models.

        ``alone``: Ray was started by this process, so no node can join. ``plan`` fits settings to the free memory of
        the smallest GPU, in bytes (0 on CPUs); None takes them as they are. ``examine`` looks at the nodes once they
        are reserved, before any rank is started, and raises if the run would fail there. Raises PlacementError if the
        nodes do not come within trainer.placement_timeout, WorkerError or the rank's own LaurelError if a rank fails.
        """
        trainer = config.trainer
        device: Device = "cpu" if trainer.device == "cpu" else "cuda"
        wanted = Wanted(trainer.nnodes, trainer.n_gpus_per_node or 1, device)
        placement = reserve(wanted, timeout_s=trainer.placement_timeout, alone=alone, say=say)
        group = cls((), placement, say=say)
        try:
            if examine is not None:
                examine([place.node for place in placement.places])
            group.handles = start_ranks(placement, deadline_s=trainer.placement_timeout, say=say)
            for line in describe_nodes(group.members):
                say(line)
            smallest = min(member.memory for member in group.members)
            group.fit = Fit(config) if plan is None else plan(smallest)
            group._build(group.fit, updates)
        except BaseException:
            group.kill()
            raise
        return group

    def _build(self, fit: Fit, updates: Updates) -> None:
        shared = ray.put(fit.config)
        world, device = len(self.handles), self.placement.wanted.device
        opened = self.run("opening the meeting", lambda actor, rank: actor.open.remote(shared, rank, world, device))
        self.run("loading models", lambda actor, rank: actor.build.remote(opened[0], updates, fit))
        self.tell()

    def tell(self) -> None:
        """Say what ranks warned of since the last time."""
        for line in told(self.members, self.run("its warnings", lambda actor, rank: actor.notices.remote())):
            self.say(line)

    @property
    def world(self) -> int:
        return len(self.handles)

    @property
    def members(self) -> tuple[Member, ...]:
        return tuple(handle.member for handle in self.handles)

    def run(self, what: str, call: Callable[[ActorProxy[Rank], int], ObjectRef[Any]]) -> list[Any]:
        """``call(actor, rank)`` on every rank at once; their answers in rank order. ``what`` names it in messages."""
        try:
            refs = [call(handle.actor, handle.member.rank) for handle in self.handles]
            return gather(refs, self.members, what, say=self.say)
        except LaurelError:
            self.kill()
            raise

    def start(self, what: str, call: Callable[[ActorProxy[Rank], int], ObjectRef[Any]]) -> Started:
        """As ``run``, without waiting; a failure ends nothing before somebody asks for the answers."""
        if not self.handles:
            raise LaurelError(f"{what}: the ranks have ended")
        return Started([call(handle.actor, handle.member.rank) for handle in self.handles], self.members, what)

    def close(self) -> None:
        """End all ranks: in order if they answer, by force if not; then give the nodes back."""
        if self.handles:
            with suppress(RayError):  # a rank that is gone or hangs ends by force below
                ray.wait([h.actor.close.remote() for h in self.handles], num_returns=self.world, timeout=_CLOSE_S)
        self.kill()

    def kill(self) -> None:
        """End all ranks at once."""
        for handle in self.handles:
            end(handle.actor)
        self.handles = ()
        self.placement.release()

    def __enter__(self) -> WorkerGroup:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close() if error is None else self.kill()


@dataclass(frozen=True)
class Started:
    """Calls that ranks work on."""

    refs: Sequence[ObjectRef[Any]]
    members: Sequence[Member]
    what: str

    def answers(self, say: Say = print) -> list[Any]:
        """In rank order, waited for; from any thread. Raises as ``WorkerGroup.run``."""
        return gather(self.refs, self.members, self.what, say=say)


def start_ranks(placement: Placement, *, deadline_s: float, say: Say = print) -> tuple[Handle, ...]:
    """One actor per rank. Ranks count along the placement's nodes; on a node by the index of the GPU that Ray gave."""
    device = placement.wanted.device
    started: list[tuple[Place, ActorProxy[Rank]]] = []
    for place in placement.places:
        for _ in range(placement.wanted.ranks):
            remote = RemoteRank.options(**placement.options(place))
            started.append((place, remote.remote(passed_environment(), placement.ranks_on_host(place))))
    # Until they answer, ranks are known by the order in which they were asked for
    expected = [
        Member(rank, place.node.ip, place.node.id, place.node.host, 0, device, 0)
        for rank, (place, _) in enumerate(started)
    ]
    try:
        refs = [actor.describe.remote(rank, device) for rank, (_, actor) in enumerate(started)]
        members = gather(refs, expected, "its start", say=say, deadline_s=deadline_s)
    except LaurelError:
        for _, actor in started:
            end(actor)
        raise
    node_order = {place.node.id: number for number, place in enumerate(placement.places)}
    found = sorted(
        ((member, actor) for member, (_, actor) in zip(members, started, strict=True)),
        key=lambda pair: (node_order[pair[0].node_id], pair[0].gpu_index, pair[0].rank),
    )
    return tuple(Handle(actor, replace(member, rank=rank)) for rank, (member, actor) in enumerate(found))


def end(actor: ActorProxy[Rank]) -> None:
    """End a rank's process at once; one that is dead already is left alone."""
    ray.kill(cast(ActorHandle[Rank], actor), no_restart=True)


def describe_nodes(members: Sequence[Member]) -> list[str]:
    """A line for each node. Example: ``node 10.0.0.1: ranks 0-7 on cuda, 4 threads each``."""
    lines = []
    for node_id in dict.fromkeys(member.node_id for member in members):
        on_node = [member for member in members if member.node_id == node_id]
        first, last = on_node[0], on_node[-1]
        ranks = f"ranks {first.rank}-{last.rank}" if len(on_node) > 1 else f"rank {first.rank}"
        threads = f"{first.threads} thread{'s' * (first.threads != 1)}{' each' * (len(on_node) > 1)}"
        lines.append(f"node {first.ip}: {ranks} on {first.device}, {threads}")
    return lines
