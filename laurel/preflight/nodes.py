"""Whether the nodes and GPUs asked for can be there, as far as this machine can tell without joining Ray."""

from __future__ import annotations

import os
import sys

from laurel.config.machine import visible_gpus
from laurel.config.tree import Config
from laurel.types import Problem
from laurel.workers.raylets import hand_started_cluster, running_raylets


def check(config: Config) -> list[Problem]:
    """Problems of a run that has no cluster to join: it gets this machine and nothing else."""
    if joins_a_cluster(config):
        return []
    trainer, problems = config.trainer, []
    if trainer.nnodes > 1:
        cure = (
            "no Ray cluster of yours runs here to take nodes from; run `ray start --head` here and `ray start "
            "--address=THIS_MACHINE:6379` on the others, or set RAY_ADDRESS"
        )
        problems.append(Problem("trainer.nnodes", trainer.nnodes, cure, machine=True))
    here, wanted = visible_gpus(), trainer.n_gpus_per_node or 1
    if trainer.device == "cuda" and here == 0:
        cure = (
            "no NVIDIA GPU is visible on this machine (nvidia-smi -L, CUDA_VISIBLE_DEVICES); set trainer.device=cpu, "
            "or use a GPU node"
        )
        problems.append(Problem("trainer.device", "cuda", cure, machine=True))
    elif trainer.device == "cuda" and here < wanted:
        problems.append(
            Problem("trainer.n_gpus_per_node", wanted, f"only {here} are visible; use {here}", machine=True)
        )
    return problems


def joins_a_cluster(config: Config) -> bool:
    """Whether Ray will be joined, and not started for this run: by address, by hand, or by a program around us."""
    address = config.ray_kwargs.ray_init.get("address") or os.environ.get("RAY_ADDRESS") or None
    if address == "local":
        return False
    return (
        address is not None or "ray" in sys.modules or hand_started_cluster(running_raylets(), os.getuid()) is not None
    )
