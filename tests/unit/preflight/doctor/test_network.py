import pytest

from laurel.preflight.doctor.network import GLOO, NCCL, Network, allows, judge, look, taken

LO, ETH, DOCKER = ("lo", "127.0.0.1"), ("eth0", "10.0.0.1"), ("docker0", "172.17.0.1")
ADDRESSES = {"a": "10.0.0.1", "b": "10.0.0.2"}


def network(own: str, *, before=(), named=None, chosen=None, routes=None) -> Network:
    ways = dict.fromkeys(ADDRESSES.values(), "eth0") if routes is None else routes
    return Network((LO, *before, ("eth0", own)), (named or own,), ways, chosen or {})


def pair(**of_a) -> dict[str, Network]:
    return {"a": network("10.0.0.1", **of_a), "b": network("10.0.0.2")}


def test_healthy_nodes_have_no_findings():
    assert judge(ADDRESSES, pair(), machines=2) == []


@pytest.mark.parametrize(
    ("address", "what"),
    [
        ("127.0.1.1", "Ray knows it as 127.0.1.1, which no other node can reach"),
        ("10.9.9.9", "Ray knows it as 10.9.9.9, which is no address of it"),
        ("172.17.0.1", "Ray knows it as 172.17.0.1, the address of docker0, which no other node can reach"),
    ],
)
def test_an_address_that_others_cannot_reach(address, what):
    networks = pair(before=(DOCKER,))
    (found,) = judge({"a": address, "b": "10.0.0.2"}, networks, machines=2)
    assert (found.severity, found.where, found.what) == ("error", "a", what)
    assert found.cure == "start Ray there with --node-ip-address=10.0.0.1"


def test_a_node_without_a_route():
    (found,) = judge(ADDRESSES, pair(routes={"10.0.0.1": "eth0", "10.0.0.2": None}), machines=2)
    assert (found.severity, found.what) == ("error", "has no route to 10.0.0.2")


def test_variables_that_name_nothing_or_another_interface():
    (found,) = judge(ADDRESSES, pair(chosen={GLOO: "ib0"}), machines=2)
    assert (found.severity, found.what) == ("error", "GLOO_SOCKET_IFNAME=ib0 names no interface of it; it has lo, eth0")
    assert found.cure == "set GLOO_SOCKET_IFNAME=eth0, or unset it"
    found, trap = judge(ADDRESSES, pair(before=(DOCKER,), chosen={NCCL: "docker"}), machines=2)
    assert (found.severity, trap.severity) == ("warning", "note")
    assert "NCCL_SOCKET_IFNAME=docker takes docker0, but the route to the other nodes is by eth0" in found.what


def test_traps_of_a_node_are_noted_with_what_its_ranks_get():
    (found,) = judge(ADDRESSES, pair(before=(DOCKER,), named="127.0.1.1"), machines=2)
    assert found.severity == "note"
    assert "its host name resolves to 127.0.1.1 and its first interface is docker0" in found.what
    assert "its ranks get GLOO_SOCKET_IFNAME=eth0 and NCCL_SOCKET_IFNAME=eth0" in found.what


def test_one_machine_needs_no_way_to_others():
    alone = Network((LO,), ("127.0.1.1",), {"127.0.0.1": "lo"}, {})
    assert judge({"a": "127.0.0.1"}, {"a": alone}, machines=1) == []


@pytest.mark.parametrize(
    ("variable", "value", "interface", "allowed"),
    [
        (GLOO, "eth0,ib0", "ib0", True),
        (GLOO, "eth", "eth0", False),
        (NCCL, "eth", "eth0", True),
        (NCCL, "=eth", "eth0", False),
        (NCCL, "=eth0,ib0", "eth0", True),
        (NCCL, "^docker,lo", "eth0", True),
        (NCCL, "^docker,lo", "docker0", False),
        (NCCL, "^=eth0", "eth0", False),
    ],
)
def test_how_libraries_read_their_variable(variable, value, interface, allowed):
    assert allows(variable, value, interface) is allowed


def test_what_a_rank_takes_is_the_way_to_rank_0():
    assert taken("10.0.0.2", network("10.0.0.2", routes={"10.0.0.1": "ib0", "10.0.0.2": "lo"}), "10.0.0.1") == "ib0"
    assert taken("10.0.0.1", network("10.0.0.1", routes={"10.0.0.1": "eth0"}), "10.0.0.1") == "eth0"


def test_this_machine(monkeypatch):
    monkeypatch.setenv(GLOO, "lo")
    monkeypatch.delenv(NCCL, raising=False)
    found = look("localhost", ["127.0.0.1"])
    assert LO in found.interfaces
    assert (found.named, found.routes, found.chosen) == (("127.0.0.1",), {"127.0.0.1": "lo"}, {GLOO: "lo"})
