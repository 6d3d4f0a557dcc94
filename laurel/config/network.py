"""This machine's network as the kernel knows it, without torch or Ray: interfaces, routes, names."""

from __future__ import annotations

import fcntl
import socket
import struct

_SIOCGIFADDR = 0x8915


def is_loopback(address: str) -> bool:
    return address.startswith("127.")


def addresses_of(host: str) -> list[str]:
    """IPv4 addresses of a name, each once; empty if it has none."""
    try:
        found = socket.getaddrinfo(host, None, socket.AF_INET, socket.SOCK_STREAM)
    except OSError:
        return []
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


def route_source(address: str) -> str | None:
    """The address that this machine would use to speak with ``address``; no packet is sent. None without a route."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((address, 9))
            return str(probe.getsockname()[0])
        except OSError:
            return None


def interfaces() -> list[tuple[str, str]]:
    """Network interfaces that have an IPv4 address, in the kernel's order: name and address."""
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            except OSError:
                continue  # an interface without an IPv4 address
            found.append((name, socket.inet_ntoa(answer[20:24])))
    return found


def interface_to(host: str) -> str | None:
    """The network interface that packets to ``host`` leave by; None if that cannot be told."""
    try:
        source = route_source(host)
        return next((name for name, address in interfaces() if address == source), None)
    except OSError:
        return None
