"""Room on the cluster for every rank: waited for with a deadline, and lines that say what is missing."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import ray
from ray.util.placement_group import PlacementGroup, placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from laurel.types import LaurelError
from laurel.workers.session import Say

Device = Literal["cpu", "cuda"]
_FIRST_REPORT_S = 5.0
_REPORT_EVERY_S = 15.0


class PlacementError(LaurelError):
    """The cluster did not offer the nodes asked for."""


@dataclass(frozen=True)
class Wanted:
    """What a run needs: ``nodes`` nodes with ``ranks`` ranks each, on GPUs or on the CPU."""

    nodes: int
    ranks: int
    device: Device

    def __str__(self) -> str:
        each = f"{self.ranks} GPU{'s' * (self.ranks != 1)}" if self.device == "cuda" else "a free CPU"
        return f"{self.nodes} node{'s' * (self.nodes != 1)} with {each}{' each' * (self.nodes != 1)} wanted"

    @property
    def bundle(self) -> dict[str, float]:
        """Reserved on each node. One CPU, however many ranks: it holds the place for this run, and any node that was
        started by hand has one; how many threads the ranks take is decided apart from Ray's accounting."""
        return {"CPU": 1.0} | ({"GPU": float(self.ranks)} if self.device == "cuda" else {})


@dataclass(frozen=True)
class Node:
    """One node of the cluster: ``cpus`` and ``gpus`` as it told Ray."""

    id: str
    ip: str
    host: str
    cpus: float
    gpus: float

    def offers(self, wanted: Wanted) -> bool:
        return self.cpus >= 1 and (wanted.device == "cpu" or self.gpus >= wanted.ranks)

    def describe(self, wanted: Wanted) -> str:
        return f"node {self.ip} with {self.gpus if wanted.device == 'cuda' else self.cpus:g}"


@dataclass(frozen=True)
class Place:
    """A reserved node; ``bundle`` is its number within the placement group."""

    node: Node
    bundle: int


@dataclass(frozen=True)
class Placement:
    """Nodes in rank order: the driver's first, then by address. Ranks fill one node after the other."""

    group: PlacementGroup
    places: tuple[Place, ...]
    wanted: Wanted

    def options(self, place: Place) -> dict[str, Any]:
        """Ray options of an actor that runs on ``place``."""
        return {
            "num_cpus": 0,
            "num_gpus": 1 if self.wanted.device == "cuda" else 0,
            "scheduling_strategy": PlacementGroupSchedulingStrategy(self.group, place.bundle),
        }

    def ranks_on_host(self, place: Place) -> int:
        """Ranks that share the cores of this node's machine, which may carry several (simulated) nodes."""
        return self.wanted.ranks * sum(other.node.host == place.node.host for other in self.places)

    def release(self) -> None:
        remove_placement_group(self.group)


def reserve(wanted: Wanted, *, timeout_s: float, alone: bool, say: Say = print) -> Placement:
    """Wait until the cluster offers what is wanted, and hold it.

    ``alone`` says that no other node can join (Ray was started by this process), so a shortage is an error at once.
    Raises PlacementError at the deadline, naming what is missing and the likely cause.
    """
    if alone and shortage(wanted, alive_nodes()):
        raise PlacementError(explain(wanted, alive_nodes(), alone=True, waited_s=0))
    group = placement_group([wanted.bundle] * wanted.nodes, strategy="STRICT_SPREAD")
    start = time.monotonic()
    next_report = start + _FIRST_REPORT_S
    try:
        while not group.wait(timeout_seconds=min(1.0, timeout_s)):
            now = time.monotonic()
            if now - start >= timeout_s:
                raise PlacementError(explain(wanted, alive_nodes(), alone=alone, waited_s=now - start))
            if now >= next_report:
                say(f"Waiting {now - start:.0f} s of {timeout_s:.0f} s for nodes: {state(wanted, alive_nodes())}")
                next_report = now + _REPORT_EVERY_S
        return Placement(group, in_rank_order(group, alive_nodes()), wanted)
    except BaseException:
        remove_placement_group(group)
        raise


def in_rank_order(group: PlacementGroup, nodes: Sequence[Node]) -> tuple[Place, ...]:
    """The group's nodes, the driver's first if it is among them, then by address (as numbers) and id."""
    known = {node.id: node for node in nodes}
    own = ray.get_runtime_context().get_node_id()
    places = [Place(known[id], int(b)) for b, id in placement_group_table(group)["bundles_to_node_id"].items()]
    return tuple(sorted(places, key=lambda place: (place.node.id != own, address_key(place.node.ip), place.node.id)))


def address_key(ip: str) -> tuple[tuple[int, str], ...]:
    """Sorts 10.0.0.9 before 10.0.0.10; other forms of address as text."""
    return tuple((int(part), "") if part.isdigit() else (-1, part) for part in ip.split("."))


def alive_nodes() -> list[Node]:
    return [
        Node(
            node["NodeID"],
            node["NodeManagerAddress"],
            node["NodeManagerHostname"],
            node["Resources"].get("CPU", 0.0),
            node["Resources"].get("GPU", 0.0),
        )
        for node in ray.nodes()
        if node["Alive"]
    ]


def shortage(wanted: Wanted, nodes: Sequence[Node]) -> int:
    """Nodes still missing, counting what each node has in all, free or not."""
    return max(0, wanted.nodes - sum(node.offers(wanted) for node in nodes))


def state(wanted: Wanted, nodes: Sequence[Node]) -> str:
    """Example: ``2 nodes with 8 GPUs each wanted; have node 10.0.0.1 with 8, node 10.0.0.2 with 4``."""
    found = sorted(nodes, key=lambda node: address_key(node.ip))
    unit = "GPUs" if wanted.device == "cuda" else "CPUs"
    have = ", ".join(node.describe(wanted) for node in found) or "no node"
    return f"{wanted}; have {have} {unit if wanted.device == 'cpu' and found else ''}".rstrip()


def explain(wanted: Wanted, nodes: Sequence[Node], *, alone: bool, waited_s: float) -> str:
    """The error at the deadline: what is missing, and what to do about the likely cause."""
    missing = shortage(wanted, nodes)
    if not missing:
        cure = (
            "the nodes are there but something else holds them: look at `ray status` for other jobs, and stop them or "
            "wait longer (trainer.placement_timeout)"
        )
    elif alone:
        cure = "Ray was started by this run on this machine alone. " + (
            "Start Ray on every node (`ray start --head` on one, `ray start --address=<head>:6379` on the others) and "
            "run again on the head, or set RAY_ADDRESS"
            if wanted.nodes > 1
            else "Lower trainer.n_gpus_per_node, or check nvidia-smi and CUDA_VISIBLE_DEVICES"
        )
    elif sum(node.cpus >= 1 for node in nodes) < wanted.nodes:
        cure = (
            f"{wanted.nodes - len(nodes)} more must join: on each run `ray start --address={_head_address()}` and "
            "check that it reaches that port (firewall, another network interface), or lower trainer.nnodes"
            if len(nodes) < wanted.nodes
            else "some nodes offer no CPU: start them with --num-cpus=1 or more"
        )
    else:
        cure = (
            "a node offers fewer GPUs than trainer.n_gpus_per_node: check nvidia-smi there, start Ray with "
            "--num-gpus, or lower trainer.n_gpus_per_node (trainer.device=cpu counts processes instead of GPUs)"
        )
    waited = f" after {waited_s:.0f} s (trainer.placement_timeout)" if waited_s else ""
    return f"no room for this run{waited}: {state(wanted, nodes)}. {missing} of {wanted.nodes} missing; {cure}"


def _head_address() -> str:
    return ray.get_runtime_context().gcs_address if ray.is_initialized() else "<head>:6379"
