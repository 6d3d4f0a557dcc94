from types import SimpleNamespace

import pytest

from laurel.workers import placement
from laurel.workers.placement import (
    Node,
    Place,
    Placement,
    PlacementError,
    Wanted,
    address_key,
    explain,
    shortage,
    state,
)

TWO_OF_EIGHT = Wanted(2, 8, "cuda")


def node(ip, *, cpus=16.0, gpus=0.0, host=None):
    return Node(f"id-{ip}", ip, host or ip, cpus, gpus)


def test_a_bundle_holds_the_gpus_of_a_node_and_one_cpu():
    assert TWO_OF_EIGHT.bundle == {"CPU": 1.0, "GPU": 8.0}
    assert Wanted(2, 8, "cpu").bundle == {"CPU": 1.0}, "8 ranks run on a node with one CPU"


def test_the_state_names_every_node_and_what_it_has():
    nodes = [node("10.0.0.10", gpus=4), node("10.0.0.9", gpus=8)]
    assert (
        state(TWO_OF_EIGHT, nodes)
        == "2 nodes with 8 GPUs each wanted; have node 10.0.0.9 with 8, node 10.0.0.10 with 4"
    )
    assert (
        state(Wanted(1, 2, "cpu"), [node("10.0.0.1", cpus=2)])
        == "1 node with a free CPU wanted; have node 10.0.0.1 with 2 CPUs"
    )
    assert state(TWO_OF_EIGHT, []) == "2 nodes with 8 GPUs each wanted; have no node"


def test_shortage_counts_nodes_that_could_serve():
    assert shortage(TWO_OF_EIGHT, [node("a", gpus=8), node("b", gpus=4)]) == 1
    assert shortage(TWO_OF_EIGHT, [node("a", gpus=8), node("b", gpus=8), node("c", gpus=8)]) == 0
    assert shortage(Wanted(1, 1, "cpu"), [node("a", cpus=0)]) == 1


def reason(wanted, nodes, *, alone=False):
    return explain(wanted, nodes, alone=alone, waited_s=0 if alone else 600)


def test_the_likely_cause_of_each_shortage():
    full = [node("10.0.0.1", gpus=8), node("10.0.0.2", gpus=8)]
    assert "something else holds them" in reason(TWO_OF_EIGHT, full)
    assert "1 of 2 missing; 1 more must join: on each run `ray start --address=" in reason(TWO_OF_EIGHT, full[:1])
    assert "1 of 2 missing; a node offers fewer GPUs than trainer.n_gpus_per_node" in reason(
        TWO_OF_EIGHT, [full[0], node("10.0.0.2", gpus=4)]
    )
    assert "start them with --num-cpus=1 or more" in reason(Wanted(2, 1, "cpu"), [node("a"), node("b", cpus=0)])
    alone = reason(TWO_OF_EIGHT, full[:1], alone=True)
    assert alone.startswith("no room for this run: 2 nodes with 8 GPUs each wanted; have node 10.0.0.1 with 8. 1 of 2 ")
    assert "Start Ray on every node" in alone
    assert "Lower trainer.n_gpus_per_node" in reason(Wanted(1, 16, "cuda"), full[:1], alone=True)
    assert "after 600 s (trainer.placement_timeout)" in reason(TWO_OF_EIGHT, full[:1])


def test_addresses_sort_as_numbers():
    assert sorted(["10.0.0.10", "10.0.0.9", "head"], key=address_key) == ["head", "10.0.0.9", "10.0.0.10"]


def test_simulated_nodes_share_the_cores_of_their_machine():
    first, second, third = (
        Place(node(ip, host=host), i) for i, (ip, host) in enumerate([("a", "m"), ("b", "m"), ("c", "n")])
    )
    held = Placement(None, (first, second, third), Wanted(3, 4, "cpu"))
    assert held.ranks_on_host(first) == held.ranks_on_host(second) == 8
    assert held.ranks_on_host(third) == 4


def test_a_ray_of_our_own_does_not_wait_for_nodes_that_cannot_come(monkeypatch):
    monkeypatch.setattr(placement, "alive_nodes", lambda: [node("10.0.0.1")])
    with pytest.raises(PlacementError, match="no room for this run: 2 nodes with a free CPU each wanted"):
        placement.reserve(Wanted(2, 1, "cpu"), timeout_s=600, alone=True)


def test_the_drivers_node_comes_first_and_the_others_by_address(monkeypatch):
    nodes = [node("10.0.0.10"), node("10.0.0.9"), node("10.0.0.30")]
    table = {"bundles_to_node_id": {0: "id-10.0.0.10", 1: "id-10.0.0.30", 2: "id-10.0.0.9"}}
    monkeypatch.setattr(placement, "placement_group_table", lambda group: table)
    context = SimpleNamespace(get_node_id=lambda: "id-10.0.0.30")
    monkeypatch.setattr(placement.ray, "get_runtime_context", lambda: context)
    places = placement.in_rank_order(None, nodes)
    assert [(place.node.ip, place.bundle) for place in places] == [("10.0.0.30", 1), ("10.0.0.9", 2), ("10.0.0.10", 0)]
