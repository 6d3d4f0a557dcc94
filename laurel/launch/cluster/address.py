"""This node's address as others reach it: the source of the route to them, never what its host name resolves to.

A host name may resolve to 127.0.1.1 on its own machine, and the first interface may be Docker's bridge.
"""

from __future__ import annotations

from collections.abc import Iterable

from laurel.config.network import addresses_of, is_loopback, route_source


def resolve(host: str) -> list[str]:
    """IPv4 addresses of a name, those that only this machine can reach left out. Empty if it has none."""
    return [address for address in addresses_of(host) if not is_loopback(address)]


def own_address(others: Iterable[str]) -> str:
    """The address by which ``others`` (names or addresses of further nodes) reach this machine.

    The first of them that resolves and has a route decides. With no other node it is the source of the default route,
    or else loopback.
    """
    for other in others:
        for address in resolve(other):
            source = route_source(address)
            if source and not is_loopback(source):
                return source
    outside = route_source("192.0.2.1")  # an address that no machine has: only the default route leads there
    return outside or "127.0.0.1"
