"""What a rank finds and sets on its own machine before torch is imported."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import ray

from laurel.workers.session import usable_cores
from laurel.workers.waiting import Member

_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
_QUIET = {
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "TRANSFORMERS_VERBOSITY": "error",
}


def settle(ranks_on_host: int) -> int:
    """Set this process's threads: its share of the machine's cores. Returns how many.

    Two busy processes with two threads each on two cores run at a tenth of their speed, so each rank gets its part and
    no more. Ray would give OMP_NUM_THREADS=1 to actors that reserve no CPU. Both the environment (thread pools made
    later) and torch (every thread of this process) are told.
    """
    threads = max(1, usable_cores() // ranks_on_host)
    for name in _THREAD_VARIABLES:
        os.environ[name] = str(threads)
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    import torch

    torch.set_num_threads(threads)
    return threads


def describe(rank: int, device: str, threads: int) -> Member:
    """This process, as messages name it."""
    return Member(
        rank=rank,
        ip=ray.util.get_node_ip_address(),
        node_id=ray.get_runtime_context().get_node_id(),
        host=socket.gethostname(),
        pid=os.getpid(),
        device=device,
        threads=threads,
        gpu=_gpu(device),
        gpu_index=_gpu_index(device),
        log=stderr_file(),
        memory=_gpu_memory(device),
    )


def _gpu(device: str) -> str:
    if device != "cuda":
        return ""
    import torch

    if not torch.cuda.is_available():
        raise RuntimeError(
            f"no GPU is usable here: torch {torch.__version__} sees none (CUDA_VISIBLE_DEVICES="
            f"{os.environ.get('CUDA_VISIBLE_DEVICES')!r}); check that this node's torch is a CUDA build"
        )
    return str(torch.cuda.get_device_properties(0).uuid)


def _gpu_memory(device: str) -> int:
    """Bytes that a GPU has left for this process, before anything is loaded; 0 on a CPU."""
    if device != "cuda":
        return 0
    import torch

    return int(torch.cuda.mem_get_info()[0])


def _gpu_index(device: str) -> int:
    """The number that Ray knows this rank's only GPU by on its node; ids that are no numbers keep their order."""
    ids = [str(id) for id in ray.get_gpu_ids()] if device == "cuda" else []
    return int(ids[0]) if ids and ids[0].isdigit() else 0


def stderr_file() -> str:
    """The file that this process's stderr goes to."""
    try:
        return str(Path(os.readlink("/proc/self/fd/2")))
    except OSError:  # no /proc
        return ""
