"""The network of a node: which interface leads to the others, and which one libraries would take if left alone."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from laurel.config.network import addresses_of, interface_to, interfaces, is_loopback
from laurel.preflight.doctor.finding import Finding

GLOO, NCCL = "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"
_BRIDGES = ("docker", "br-", "virbr", "podman", "cni", "lxc")


@dataclass(frozen=True)
class Network:
    """``interfaces`` are names and addresses in the kernel's order, ``named`` what the host's own name resolves to,
    ``routes`` the interface to each node by its address, ``chosen`` what GLOO and NCCL are set to there, if at all."""

    interfaces: tuple[tuple[str, str], ...]
    named: tuple[str, ...]
    routes: Mapping[str, str | None]
    chosen: Mapping[str, str]


def look(host: str, nodes: Sequence[str]) -> Network:
    """Of this machine, towards the addresses ``nodes``."""
    return Network(
        tuple(interfaces()),
        tuple(addresses_of(host)),
        {address: interface_to(address) for address in nodes},
        {name: os.environ[name] for name in (GLOO, NCCL) if os.environ.get(name)},
    )


def taken(address: str, network: Network, first: str) -> str | None:
    """The interface that a rank of the node ``address`` takes, as learner/dist.py chooses it: the one to rank 0's node,
    whose address is ``first``."""
    return network.routes.get(first) if address != first else network.routes.get(address)


def judge(addresses: Mapping[str, str], networks: Mapping[str, Network], *, machines: int) -> list[Finding]:
    """``addresses``: how Ray knows each node, rank 0's first; ``machines`` says how many machines the nodes are."""
    found: list[Finding] = []
    first = next(iter(addresses.values()), "")
    for name, network in networks.items():
        address = addresses[name]
        if machines > 1:
            unreachable = _unreachable(name, address, network)
            if unreachable is not None:
                found.append(unreachable)
                continue
            missing = [other for other, route in network.routes.items() if route is None]
            if missing:
                cure = "`ip route get ADDRESS` there says why; give the node an interface in their network"
                found.append(Finding("network", "error", name, f"has no route to {', '.join(missing)}", cure))
                continue
        interface = taken(address, network, first)
        if interface is not None:
            found += _variables(name, network, interface)
            if machines > 1:
                found += _left_alone(name, network, interface)
    return found


def _unreachable(name: str, address: str, network: Network) -> Finding | None:
    own = next((interface for interface, its in network.interfaces if its == address), None)
    better = next((its for interface, its in network.interfaces if not _only_here(interface, its)), "ITS-ADDRESS")
    cure = f"start Ray there with --node-ip-address={better}"
    if is_loopback(address):
        return Finding("network", "error", name, f"Ray knows it as {address}, which no other node can reach", cure)
    if own is None:
        return Finding("network", "error", name, f"Ray knows it as {address}, which is no address of it", cure)
    if _only_here(own, address):
        what = f"Ray knows it as {address}, the address of {own}, which no other node can reach"
        return Finding("network", "error", name, what, cure)
    return None


def _variables(name: str, network: Network, interface: str) -> list[Finding]:
    """GLOO_ and NCCL_SOCKET_IFNAME as the user set them."""
    found = []
    names = [other for other, _ in network.interfaces]
    for variable, value in network.chosen.items():
        allowed = [other for other in names if allows(variable, value, other)]
        if not allowed:
            what = f"{variable}={value} names no interface of it; it has {', '.join(names)}"
            found.append(Finding("network", "error", name, what, f"set {variable}={interface}, or unset it"))
        elif interface not in allowed:
            what = f"{variable}={value} takes {', '.join(allowed)}, but the route to the other nodes is by {interface}"
            found.append(Finding("network", "warning", name, what, f"set {variable}={interface} unless it is meant"))
    return found


def _left_alone(name: str, network: Network, interface: str) -> list[Finding]:
    """What gloo and NCCL would do without the choice that Laurel makes for its ranks."""
    traps = [f"its host name resolves to {address}" for address in network.named if is_loopback(address)]
    others = [other for other, address in network.interfaces if not is_loopback(address)]
    if others and others[0] != interface and _only_here(others[0], ""):
        traps.append(f"its first interface is {others[0]}")
    if not traps:
        return []
    set_here = [variable for variable in (GLOO, NCCL) if variable not in network.chosen]
    what = f"{' and '.join(traps)}; the others are reached by {interface}"
    if set_here:
        what += f", so its ranks get {' and '.join(f'{variable}={interface}' for variable in set_here)}"
    cure = f"for programs other than Laurel set {GLOO}={interface} {NCCL}={interface} there"
    return [Finding("network", "note", name, what, cure)]


def allows(variable: str, value: str, interface: str) -> bool:
    """Whether the setting lets a library take ``interface``.

    gloo: names, by comma. NCCL: beginnings of names by comma; after ``=`` whole names, after ``^`` those to leave out.
    """
    if variable == GLOO:
        return interface in value.split(",")
    without, exact = value.startswith("^"), value.lstrip("^").startswith("=")
    parts = value.lstrip("^=").split(",")
    match = interface in parts if exact else any(part and interface.startswith(part) for part in parts)
    return match != without


def _only_here(interface: str, address: str) -> bool:
    return is_loopback(address) or interface.startswith(_BRIDGES)
