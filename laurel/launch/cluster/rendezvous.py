"""The head's side of joining: who called, how far each node is, and when all are there."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal

from laurel.launch.cluster.facts import Facts, misfit, shared_gpus
from laurel.launch.cluster.wire import ALIVE_EVERY_S, Closed, Stranger, Wire, greet
from laurel.types import LaurelError

Say = Callable[[str], object]
State = Literal["called", "joined", "gone"]
REPORT_EVERY_S = 15.0


@dataclass
class Member:
    """A node that called. ``doing`` is its last word on what it is at."""

    rank: int
    name: str
    facts: Facts
    wire: Wire
    state: State = "called"
    doing: str = ""
    why: str = ""


@dataclass
class Rendezvous:
    """Takes calls on ``listener`` until closed. ``answer`` is what a fitting node is told (Ray's address).

    A node is refused, with the reason, if its versions differ, if its rank has joined, if a GPU of it was reported by
    another node, or if it has fewer GPUs than ``gpus``; the reasons stay in ``refused`` for the barrier's error.
    """

    listener: socket.socket
    token: str
    nodes: int
    gpus: int
    own: Facts
    answer: dict[str, Any]
    say: Say = print
    members: dict[int, Member] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    strangers: list[str] = field(default_factory=list)
    news: threading.Condition = field(default_factory=threading.Condition)
    ended: bool = False
    ray_is_up: threading.Event = field(default_factory=threading.Event)
    last_progress: float = field(default_factory=time.monotonic)

    def open(self) -> None:
        threading.Thread(target=self._take_calls, daemon=True, name="rendezvous").start()

    def close(self, code: int) -> None:
        """Tell every node that the job is over."""
        with self.news:
            self.ended = True
            members = list(self.members.values())
        with suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        for member in members:
            with suppress(Closed):
                member.wire.send(done=code)

    def joined(self) -> list[Member]:
        return [member for member in self.members.values() if member.state == "joined"]

    def _take_calls(self) -> None:
        while True:
            try:
                connection, (caller, _) = self.listener.accept()
            except OSError:  # closed
                return
            threading.Thread(target=self._serve, args=(connection, caller), daemon=True).start()

    def _serve(self, connection: socket.socket, caller: str) -> None:
        try:
            wire = greet(connection, self.token)
        except Stranger as stranger:
            with self.news:
                self.strangers.append(f"{caller}: {stranger}")
            return
        member = None
        try:
            member = self._admit(wire, wire.receive())
            if member is not None:
                threading.Thread(target=self._keep_told, args=(wire,), daemon=True).start()
                while True:
                    self._hear(member, wire.receive())
        except Closed as closed:
            if member is not None:
                self._lost(member, str(closed))
        finally:
            wire.close()

    def _admit(self, wire: Wire, words: dict[str, Any]) -> Member | None:
        facts = Facts.received(words["facts"])
        with self.news:
            rank = words["rank"] if words["rank"] is not None else self._next_rank(facts, wire)
            name = f"{facts.host} ({wire.other_address}, rank {rank})"
            reason = self._reason(rank, facts, wire)
            if reason is None:
                member = self.members[rank] = Member(rank, name, facts, wire)
                self.refused.pop(name, None)
                self.last_progress = time.monotonic()
            else:
                self.refused[name] = reason
            self.news.notify_all()
        if reason is not None:
            self.say(f"node {name} refused: {reason}")
            wire.send(refused=reason)
            return None
        wire.send(welcome=self.answer, rank=rank)
        return member

    def _keep_told(self, wire: Wire) -> None:
        """That the head lives, and once that its Ray is up: to a node that comes earlier Ray says only that it has no
        head."""
        with suppress(Closed):
            while not self.ray_is_up.wait(ALIVE_EVERY_S):
                wire.send(alive=True)
            wire.send(ray_is_up=True)
        _keep_alive(wire)

    def _next_rank(self, facts: Facts, wire: Wire) -> int:
        """By hand nodes have no number: the first that is free, or its own again if it called before."""
        for rank, member in self.members.items():
            if (member.facts.host, member.wire.other_address) == (facts.host, wire.other_address):
                return rank
        return next(rank for rank in range(1, len(self.members) + 2) if rank not in self.members)

    def _reason(self, rank: int, facts: Facts, wire: Wire) -> str | None:
        others = {"the head": self.own} | {m.name: m.facts for r, m in self.members.items() if r != rank}
        if rank == 0 or (self.nodes and rank >= self.nodes):
            return f"rank {rank} is not one of 1 to {self.nodes - 1}: each node has its own, the head's is 0"
        earlier = self.members.get(rank)
        if earlier is not None and earlier.state != "gone":
            return f"rank {rank} has joined already, from {earlier.name}; end one of the two"
        if facts.gpus < self.gpus:
            return (
                f"it has {facts.gpus} GPUs, {self.gpus} are asked for; look at nvidia-smi -L and CUDA_VISIBLE_DEVICES "
                "there"
            )
        return misfit(facts, self.own) or shared_gpus(facts, others)

    def _hear(self, member: Member, words: dict[str, Any]) -> None:
        with self.news:
            if "joined" in words:
                member.state, member.doing = "joined", ""
            elif "doing" in words:
                member.doing = str(words["doing"])
            elif "failed" in words:
                member.why = str(words["failed"])
            else:
                return  # only alive
            self.last_progress = time.monotonic()
            self.news.notify_all()
        if "joined" in words:
            self.say(
                f"node {member.name} joined: {_count(member.facts.gpus, 'GPU')}, {_count(member.facts.cores, 'core')}"
            )

    def _lost(self, member: Member, why: str) -> None:
        with self.news:
            if self.ended or member.state == "gone":
                return
            member.state, member.why = "gone", member.why or why
            self.news.notify_all()
        self.say(f"node {member.name} is gone: {member.why}")

    def wait(self, timeout_s: float, *, least: int, name_of: Callable[[int], str], stop: threading.Event) -> int:
        """Wait for all nodes; how many there are, the head included.

        The deadline counts from the last sign of progress, so a node that fetches a model for an hour is not missing.
        At the deadline ``least`` nodes are enough; fewer raise LaurelError that names each missing node and why.
        """
        start = self.last_progress = time.monotonic()
        next_report = start + REPORT_EVERY_S / 3
        while not stop.is_set():
            with self.news:
                here = 1 + len(self.joined())
                if here >= self.nodes:
                    return here
                now = time.monotonic()
                late = now - self.last_progress >= timeout_s
                if not late:
                    self.news.wait(min(0.5, timeout_s))
            if late:
                if here >= least:
                    self.say(
                        f"going on with {here} of {self.nodes} nodes, as --min-nodes={least} allows. "
                        f"{self._missing(name_of)}"
                    )
                    return here
                raise LaurelError(
                    f"{here} of {self.nodes} nodes joined within {timeout_s:.0f} s (--join-timeout). "
                    f"{self._missing(name_of)}"
                )
            if now >= next_report:
                next_report = now + REPORT_EVERY_S
                self.say(
                    f"Waiting {now - start:.0f} s for nodes, {here} of {self.nodes} are here. {self._missing(name_of)}"
                )
        return 1 + len(self.joined())

    def _missing(self, name_of: Callable[[int], str]) -> str:
        said = []
        port = self.listener.getsockname()[1]
        for rank in range(1, self.nodes):
            member = self.members.get(rank)
            if member is None:
                refused = next((why for name, why in self.refused.items() if name.endswith(f"rank {rank})")), None)
                said.append(
                    f"{name_of(rank)} was refused: {refused}"
                    if refused
                    else f"{name_of(rank)} has not called: is its task running, and does it reach port {port} here "
                    "(firewall, another network)?"
                )
            elif member.state == "called":
                said.append(f"{member.name}: {member.doing or 'starting Ray'}")
            elif member.state == "gone":
                said.append(f"{member.name} is gone: {member.why}")
        if self.strangers:
            said.append(f"called without knowing the token: {'; '.join(dict.fromkeys(self.strangers))}")
        return "; ".join(said)


def _keep_alive(wire: Wire) -> None:
    with suppress(Closed):
        while True:
            time.sleep(ALIVE_EVERY_S)
            wire.send(alive=True)


def keep_alive(wire: Wire) -> None:
    """Tell the other side every two seconds that this one lives, until the connection ends."""
    threading.Thread(target=_keep_alive, args=(wire,), daemon=True).start()


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}{'s' * (number != 1)}"
