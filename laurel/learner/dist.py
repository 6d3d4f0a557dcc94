"""The process group of the learner ranks: how they find each other, and numbers reduced over them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta

import torch
import torch.distributed as dist

from laurel.config.network import interface_to
from laurel.types import LaurelError


@dataclass(frozen=True)
class Ranks:
    """This process among the learner ranks. With ``world`` 1 there is no process group."""

    rank: int = 0
    world: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    @property
    def first(self) -> bool:
        return self.rank == 0

    def sum(self, values: Mapping[str, float]) -> dict[str, float]:
        """Each value summed over ranks, the same on all of them; every rank must bring the same names."""
        names = sorted(values)
        if self.world == 1 or not names:
            return {name: float(values[name]) for name in names}
        vector = torch.tensor([float(values[name]) for name in names], dtype=torch.float64, device=self.device)
        dist.all_reduce(vector)
        return dict(zip(names, vector.tolist(), strict=True))

    def max(self, value: float) -> float:
        if self.world == 1:
            return value
        number = torch.tensor(value, dtype=torch.float64, device=self.device)
        dist.all_reduce(number, op=dist.ReduceOp.MAX)
        return float(number)

    def barrier(self) -> None:
        if self.world > 1:
            dist.barrier()


ONE_RANK = Ranks()


class Meeting:
    """Where ranks meet: a TCP store that rank 0 hosts on a free port which the system chooses, so none can be taken.

    ``address`` ("host:port") is what the other ranks need. Keep the object alive as long as the group.
    """

    def __init__(self, host: str, world: int, timeout_s: float = 600.0):
        self.store = dist.TCPStore(
            host, 0, world, is_master=True, timeout=timedelta(seconds=timeout_s), wait_for_workers=False
        )
        self.address = f"{host}:{self.store.port}"


def join(
    *, rank: int, world: int, meeting: Meeting | str | None, device: torch.device | str, timeout_s: float = 600.0
) -> Ranks:
    """Join the process group. Rank 0 passes its Meeting, the others its address; one rank alone needs neither.

    Collectives wait for at most ``timeout_s`` seconds. Raises LaurelError naming the address if the ranks do not meet.
    """
    place = torch.device(device)
    if place.type == "cuda":
        place = torch.device("cuda", place.index if place.index is not None else torch.cuda.current_device())
        torch.cuda.set_device(place)
    if world == 1:
        return Ranks(0, 1, place)
    if meeting is None:
        raise ValueError(f"rank {rank} of {world} needs a meeting: rank 0's Meeting, or its address")
    address = meeting if isinstance(meeting, str) else meeting.address
    host, _, port = address.rpartition(":")
    wait = timedelta(seconds=timeout_s)
    choose_interface(host)
    try:
        store = (
            dist.TCPStore(host, int(port), world, is_master=False, timeout=wait, wait_for_workers=False)
            if isinstance(meeting, str)
            else meeting.store
        )
        dist.init_process_group(
            backend="cpu:gloo,cuda:nccl" if place.type == "cuda" else "gloo",
            store=dist.PrefixStore("laurel", store),
            rank=rank,
            world_size=world,
            timeout=wait,
            device_id=place if place.type == "cuda" else None,
        )
    except (RuntimeError, ValueError) as error:
        raise LaurelError(
            f"rank {rank} of {world} did not meet the others at {address} within {timeout_s:.0f} s "
            f"({str(error).splitlines()[0]}); check that this node reaches that address and that every rank started"
        ) from error
    return Ranks(rank, world, place)


def leave() -> None:
    """Leave the process group, if in one."""
    if dist.is_initialized():
        dist.destroy_process_group()


def choose_interface(host: str) -> None:
    """Make gloo and NCCL use the network interface that leads to ``host``; a choice of the user stands.

    Left alone, gloo takes the interface that the host name resolves to, which on many machines is the loopback.
    """
    name = interface_to(host)
    if name is not None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
        os.environ.setdefault("NCCL_SOCKET_IFNAME", name)
