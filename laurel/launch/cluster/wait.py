"""A barrier for clusters that somebody else started: until enough nodes are there."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import ray

from laurel.types import LaurelError
from laurel.workers.session import RaySession

Say = Callable[[str], None]


def wait_for_nodes(nodes: int, gpus: int, address: str | None, timeout: float, say: Say) -> int:
    """0 once ``nodes`` nodes with ``gpus`` GPUs are alive, a line for each that comes; LaurelError at the deadline.

    ``ray status`` lags by seconds and cannot be counted with; the table of nodes does not.
    """
    with RaySession({"address": address or os.environ.get("RAY_ADDRESS") or "auto"}, say=say):
        deadline, known = time.monotonic() + timeout, None
        while True:
            alive = {
                str(node["NodeManagerAddress"]): int(node["Resources"].get("GPU", 0))
                for node in ray.nodes()
                if node["Alive"]
            }
            here = [ip for ip, count in alive.items() if count >= gpus]
            if alive != known:
                for ip in sorted(alive.keys() - (known or {}).keys()):
                    short = f", {gpus} are wanted" if alive[ip] < gpus else ""
                    say(f"node {ip}: {alive[ip]} GPUs{short}")
                known = alive
            if len(here) >= nodes:
                say(f"{len(here)} of {nodes} nodes are here")
                return 0
            if time.monotonic() > deadline:
                raise LaurelError(
                    f"{len(here)} of {nodes} nodes with {gpus} GPUs after {timeout:.0f} s (--timeout): "
                    f"{', '.join(here) or 'none'}; run `ray start --address=...` or `laurel cluster join` on the others"
                )
            time.sleep(0.5)
