"""A block of ports for each job on each node, below the range that the system hands out by itself.

Where a job's blocks may lie follows from its name, so that nodes find the head without being told a port; which one it
is depends on what is free on the node.
"""

from __future__ import annotations

import hashlib
import random
import socket
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from laurel.types import LaurelError

BLOCK = 16
CANDIDATES = 8
_LOWEST = 10_240
_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")


@dataclass(frozen=True)
class Block:
    """``first`` is the port of the rendezvous; Ray's follow in a fixed order."""

    first: int

    @property
    def ray(self) -> int:
        return self.first + 1

    @property
    def dashboard(self) -> int:
        return self.first + 2

    @property
    def client(self) -> int:
        return self.first + 3

    def node_flags(self) -> list[str]:
        """``ray start`` options for the ports that every node has. Workers take what the system gives them."""
        names = (
            "node-manager-port",
            "object-manager-port",
            "dashboard-agent-listen-port",
            "dashboard-agent-grpc-port",
            "runtime-env-agent-port",
            "metrics-export-port",
        )
        flags = [f"--{name}={self.first + 4 + number}" for number, name in enumerate(names)]
        return [*flags, "--min-worker-port=0", "--max-worker-port=0"]


def first_ephemeral(setting: Path = _EPHEMERAL) -> int:
    try:
        return int(setting.read_text().split()[0])
    except (OSError, ValueError):
        return 32_768


def candidates(job: str, below: int | None = None) -> list[Block]:
    """The blocks of a job, in the order in which every node tries them; the same on all nodes."""
    below = first_ephemeral() if below is None else below
    count = (below - _LOWEST) // BLOCK
    if count < CANDIDATES:
        raise LaurelError(
            f"net.ipv4.ip_local_port_range begins at {below}: no room for ports between {_LOWEST} and it; raise its "
            "lower end (32768 is the system's own) or name a port (HOST:PORT, --port)"
        )
    draw = random.Random(hashlib.sha256(job.encode()).digest())
    return [Block(_LOWEST + BLOCK * number) for number in draw.sample(range(count), CANDIDATES)]


def take(blocks: Sequence[Block], address: str = "") -> tuple[Block, socket.socket]:
    """The first block that is free on this node, and a listening socket on its first port.

    The socket is the claim: while it is open, other jobs of this node pass the block over. Raises LaurelError if none
    is free, naming who holds what.
    """
    held: list[str] = []
    for block in blocks:
        listener = _bound(block.first, address)
        if listener is None:
            held.append(str(block.first))
            continue
        taken = [port for port in range(block.first + 1, block.first + BLOCK) if not _free(port)]
        if not taken:
            listener.listen(128)
            return block, listener
        held += map(str, taken[:1])
        listener.close()
    raise LaurelError(
        f"no free block of {BLOCK} ports on this node: ports {', '.join(held)} are in use (`ss -ltnp` shows by whom); "
        "end what holds them, or name another start (--port)"
    )


def _bound(port: int, address: str) -> socket.socket | None:
    found = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((address, port))
    except OSError:
        found.close()
        return None
    return found


def _free(port: int) -> bool:
    """On every interface: a service on loopback alone is in Ray's way as well."""
    found = _bound(port, "")
    with suppress(AttributeError):
        found.close()  # type: ignore[union-attr]
    return found is not None
