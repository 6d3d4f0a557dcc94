"""What can be wrong with the settings of Ray and placement, found without starting Ray."""

from __future__ import annotations

import os

from laurel.config.tree import Config
from laurel.types import Problem

RAY_INIT = "ray_kwargs.ray_init"
# Set by Laurel for reasons of its own; a second value would contradict it.
_OURS = ("_temp_dir", "_system_config")


def check(config: Config) -> list[Problem]:
    """Problems of ``ray_kwargs`` and of the numbers that placement needs."""
    given = config.ray_kwargs.ray_init
    problems = [
        Problem(f"{RAY_INIT}.{name}", given[name], "Laurel sets this itself; leave it out")
        for name in _OURS
        if name in given
    ]
    cpus = given.get("num_cpus")
    if cpus is not None and (not isinstance(cpus, int | float) or cpus < 1):
        problems.append(Problem(f"{RAY_INIT}.num_cpus", cpus, "a run holds one CPU per node; give 1 or more"))
    address = given.get("address") or os.environ.get("RAY_ADDRESS", "")
    source = f"{RAY_INIT}.address" if given.get("address") else "RAY_ADDRESS"
    if str(address).startswith("ray://"):
        problems.append(
            Problem(source, address, "Laurel does not run through the Ray client; submit a job or use host:port", True)
        )
    if address == "local" and config.trainer.nnodes > 1:
        cure = (
            f"starts Ray on this machine alone, but trainer.nnodes={config.trainer.nnodes}; name the cluster's address"
        )
        problems.append(Problem(source, address, cure, source == "RAY_ADDRESS"))
    return problems
