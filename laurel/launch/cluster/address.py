"""This node's address as others reach it: the source of the route to them, never what its host name resolves to.

A host name may resolve to 127.0.1.1 on its own machine, and the first interface may be Docker's bridge.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable


def resolve(host: str) -> list[str]:
    """IPv4 addresses of a name, those that only this machine can reach left out. Empty if it has none."""
    try:
        found = socket.getaddrinfo(host, None, socket.AF_INET, socket.SOCK_STREAM)
    except OSError:
        return []
    addresses = dict.fromkeys(str(entry[4][0]) for entry in found)
    return [address for address in addresses if not is_loopback(address)]


def is_loopback(address: str) -> bool:
    return address.startswith("127.")


def route_source(address: str) -> str | None:
    """The address that this machine would use to speak with ``address``; no packet is sent. None without a route."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((address, 9))
            return str(probe.getsockname()[0])
        except OSError:
            return None


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
