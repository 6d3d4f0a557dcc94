"""Asking every node of a running cluster one thing, without holding a CPU or a GPU of it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from laurel.types import LaurelError
from laurel.workers.raylets import running_raylets
from laurel.workers.session import RaySession, choose_address

DEADLINE_S = 60.0


@dataclass(frozen=True)
class Answer:
    """What one node said, or why it said nothing (``error``)."""

    ip: str
    host: str
    result: Any = None
    error: str = ""
    node_id: str = ""

    def __str__(self) -> str:
        return f"node {self.ip} ({self.host})"


def running_cluster(address: str | None) -> str | None:
    """The cluster that is meant: ``address``, RAY_ADDRESS, the one started by hand, the only one of this user's here.

    None if there is none; LaurelError if several run and nothing says which.
    """
    if chosen := choose_address(address, say=_say):
        return chosen
    found = sorted({raylet.address for raylet in running_raylets() if raylet.uid == os.geteuid()})
    if len(found) > 1:
        raise LaurelError(f"{len(found)} Ray clusters of yours run here: name one, --address {' or '.join(found)}")
    return found[0] if found else None


def join(address: str) -> RaySession:
    """A connection to that cluster with its own authentication. LaurelError if it cannot be had."""
    return RaySession({"address": address}, say=lambda line: None)


def on_each_node(
    ask: Callable[..., Any],
    *arguments: Any,
    only: Sequence[str] = (),
    deadline_s: float = DEADLINE_S,
) -> list[Answer]:
    """``ask(ip, *arguments)`` as a task on each node, at once. Nodes that died or do not answer say so.

    ``only``: addresses, host names or beginnings of node ids. LaurelError if one of them is no node.
    """
    nodes = chosen_nodes(ray.nodes(), only)
    task = ray.remote(ask)
    refs: dict[Any, dict[str, Any]] = {}
    answers: list[Answer] = []
    for node in nodes:
        if not node["Alive"]:
            answers.append(_answer(node, error="is dead: what it wrote lies on that machine"))
            continue
        here = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        options: dict[str, Any] = {"num_cpus": 0, "max_retries": 0, "scheduling_strategy": here}
        refs[task.options(**options).remote(node["NodeManagerAddress"], *arguments)] = node
    answers += _collected(refs, deadline_s)
    return sorted(answers, key=lambda answer: answer.ip)


class Posts:
    """One object of a class on each of some nodes, as an actor that holds no CPU and no GPU.

    Use it as a context manager: leaving it ends them.
    """

    def __init__(self, kind: type, nodes: Sequence[dict[str, Any]], *arguments: Any):
        """``kind(*arguments)`` on ``nodes``, rows of ``ray.nodes()``."""
        self.nodes = list(nodes)
        self._actors: dict[str, Any] = {}
        remote: Any = ray.remote(kind)
        for node in self.nodes:
            here = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            options: dict[str, Any] = {"num_cpus": 0, "max_restarts": 0, "scheduling_strategy": here}
            self._actors[node["NodeID"]] = remote.options(**options).remote(*arguments)

    def __enter__(self) -> Posts:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for actor in self._actors.values():
            ray.kill(actor, no_restart=True)

    def ask(self, method: str, arguments: Mapping[str, Sequence[Any]], *, deadline_s: float) -> dict[str, Answer]:
        """``method(*arguments[id])`` at once on every node whose id is among ``arguments``; the answers by node id."""
        rows = {node["NodeID"]: node for node in self.nodes}
        refs = {
            getattr(self._actors[node_id], method).remote(*words): rows[node_id] for node_id, words in arguments.items()
        }
        return {answer.node_id: answer for answer in _collected(refs, deadline_s)}


def _collected(refs: Mapping[Any, dict[str, Any]], deadline_s: float) -> list[Answer]:
    """The answers behind ``refs``, each of which is asked of a row of ``ray.nodes()``."""
    ready, late = ray.wait(list(refs), num_returns=len(refs), timeout=max(0.0, deadline_s)) if refs else ([], [])
    answers = []
    for ref in ready:
        try:
            answers.append(_answer(refs[ref], result=ray.get(ref)))
        except RayError as error:
            answers.append(_answer(refs[ref], error=f"could not answer: {str(error).strip().splitlines()[-1]}"))
    for ref in late:
        answers.append(_answer(refs[ref], error=f"did not answer within {deadline_s:.0f} s"))
    return answers


def chosen_nodes(nodes: Sequence[dict[str, Any]], only: Sequence[str]) -> list[dict[str, Any]]:
    """The rows of ``ray.nodes()`` that are meant; a dead one only if no living node has its address."""
    alive = {node["NodeManagerAddress"] for node in nodes if node["Alive"]}
    rows = [node for node in nodes if node["Alive"] or node["NodeManagerAddress"] not in alive]
    for name in only:
        if not any(_is(node, name) for node in rows):
            known = ", ".join(f"{node['NodeManagerAddress']} ({node['NodeManagerHostname']})" for node in rows)
            raise LaurelError(f"--node {name}: no such node; there are {known}")
    return [node for node in rows if not only or any(_is(node, name) for name in only)]


def _is(node: dict[str, Any], name: str) -> bool:
    names = (node["NodeManagerAddress"], node["NodeManagerHostname"])
    return name in names or (len(name) >= 6 and node["NodeID"].startswith(name))


def _answer(node: dict[str, Any], *, result: Any = None, error: str = "") -> Answer:
    return Answer(node["NodeManagerAddress"], node["NodeManagerHostname"], result, error, node["NodeID"])


def _say(line: str) -> None:
    print(line, file=sys.stderr)
