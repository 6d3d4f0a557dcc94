"""What one node says of itself: an object that runs there, as an actor or in this process."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from laurel.preflight.doctor import gpus, network, paths, ports, space, versions
from laurel.preflight.doctor.trial import Device, Outcome, Trial
from laurel.workers.raylets import node_options
from laurel.workers.session import usable_cores


@dataclass(frozen=True)
class Facts:
    """A node as it is. ``visible`` is its raylet's CUDA_VISIBLE_DEVICES, ``port_range`` the system's own."""

    host: str
    versions: Mapping[str, str]
    cores: int
    network: network.Network
    gpus: gpus.Gpus
    space: space.Space
    visible: str | None
    port_range: str

    def __str__(self) -> str:
        """Example: ``python 3.11.4, ray 2.60.0; 8 cores; 2 x H200; 60.0 of 64.0 GiB of memory free, ...``."""
        kinds: dict[str, int] = {}
        for gpu in self.gpus.shown or ():
            kinds[gpu.name] = kinds.get(gpu.name, 0) + 1
        cards = ", ".join(f"{count} x {kind}" for kind, count in kinds.items())
        cards = cards or (f"{self.gpus.offered:g} GPUs" if self.gpus.offered else "no GPU")
        software = ", ".join(f"{name} {version}" for name, version in self.versions.items() if name != versions.CODE)
        rooms = [f"{space.sizes(self.space.memory)} of memory"]
        rooms += [f"{space.sizes(self.space.shm)} of /dev/shm"] if self.space.shm else []
        rooms += [f"{space.sizes(disk)} for {what}" for what, disk in self.space.disks.items()]
        cores = f"{self.cores} core{'s' * (self.cores != 1)}"
        return f"{software}; {cores}; {cards}; free: {', '.join(rooms)}"


class Inspector:
    """Each method answers within seconds; what hangs is the caller's to bound."""

    def __init__(self, environment: Mapping[str, str]):
        """``environment``: variables of the driver that ranks get too."""
        os.environ.update(environment)
        self._listener: ports.Listener | None = None
        self._trial: Trial | None = None

    def look(self, node_id: str, nodes: Sequence[str], offered: float, folders: Mapping[str, str]) -> Facts:
        """``nodes``: addresses of all; ``offered`` GPUs to Ray; ``folders`` whose disks count, by what lies there."""
        host, raylet = socket.gethostname(), node_options(node_id)
        if raylet.folder:
            folders = {**folders, space.RAY: raylet.folder}
        visible = raylet.visible if node_id else os.environ.get("CUDA_VISIBLE_DEVICES")
        return Facts(
            host=host,
            versions=versions.look(),
            cores=usable_cores(),
            network=network.look(host, nodes),
            gpus=gpus.look(offered, visible),
            space=space.look(folders, store=raylet.store, store_bytes=raylet.store_bytes),
            visible=visible,
            port_range=ports.ephemeral_range(),
        )

    def clock(self) -> float:
        """Seconds since 1970."""
        return time.time()

    def listen(self, address: str) -> ports.Door:
        """Raises OSError if this node does not have the address."""
        self._listener = ports.Listener(address)
        return address, self._listener.port, self._listener.word

    def knock(self, doors: Mapping[str, ports.Door]) -> dict[str, str]:
        return ports.knock_all(doors)

    def contents(self, names: Sequence[str]) -> dict[str, paths.Content]:
        return {name: paths.look(name) for name in names}

    def plant(self, folder: str, token: str) -> paths.Planted:
        return paths.plant(folder, token)

    def seek(self, folder: str, token: str, name: str) -> str:
        return paths.seek(folder, token, name)

    def uproot(self, folder: str, token: str, made: Sequence[str]) -> None:
        paths.uproot(folder, token, made)

    def start_trial(self, ranks: Sequence[int], world: int, host: str, device: Device, visible: str | None) -> None:
        self._trial = Trial(ranks, world, host, device, visible)

    def meeting(self, within_s: float) -> str:
        return "" if self._trial is None else self._trial.address(within_s)

    def run_trial(self, address: str, within_s: float) -> list[Outcome]:
        return [] if self._trial is None else self._trial.run(address, within_s)

    def close(self) -> None:
        """End what was started here."""
        if self._listener is not None:
            self._listener.close()
        if self._trial is not None:
            self._trial.close()
