"""How fast ranks sum numbers: ``python -m laurel.preflight.bandwidth RANK WORLD HOST DEVICE`` is one of them.

Rank 0 says ``meeting ADDRESS``, which all ranks are told on their stdin; each says ``result`` and one JSON object. A
rank ends with its stdin, so none outlives the process that started it, whatever a collective waits for.
"""

from __future__ import annotations

import json
import math
import os
import sys
import threading
import time

import torch
import torch.distributed as dist

from laurel.learner.dist import Meeting, join, leave
from laurel.types import LaurelError

TIMEOUT_S = {"cpu": 10.0, "cuda": 15.0}
"""Of the meeting and of each collective."""
_SIZES = {"cpu": 8 << 20, "cuda": 256 << 20}
_ROUNDS = 4  # the first one connects


def measure(device: str, world: int) -> tuple[int, float]:
    """Bytes and best time of an all-reduce whose sum is checked. Raises LaurelError if it is wrong."""
    numbers = torch.ones(_SIZES[device] // 4, device=device)
    best = math.inf
    for _ in range(_ROUNDS):
        numbers.fill_(1.0)
        _wait(device)
        start = time.perf_counter()
        dist.all_reduce(numbers)
        _wait(device)
        best = min(best, time.perf_counter() - start)
        if float(numbers[-1]) != world:
            raise LaurelError(f"the sum of {world} ones came out as {float(numbers[-1])}")
    return numbers.numel() * 4, best


def main(rank: int, world: int, host: str, device: str) -> None:
    if device == "cuda":
        torch.cuda.set_device(rank_on_node())
    meeting = Meeting(host, world, TIMEOUT_S[device]) if rank == 0 else None
    if meeting is not None:
        print(f"meeting {meeting.address}", flush=True)
    address = sys.stdin.readline().strip()
    threading.Thread(target=_end_with_starter, daemon=True).start()
    join(rank=rank, world=world, meeting=meeting or address, device=device, timeout_s=TIMEOUT_S[device])
    size, seconds = measure(device, world)
    interface = os.environ.get("NCCL_SOCKET_IFNAME" if device == "cuda" else "GLOO_SOCKET_IFNAME", "")
    print("result", json.dumps({"bytes": size, "seconds": seconds, "interface": interface}), flush=True)
    leave()


def rank_on_node() -> int:
    return int(os.environ.get("LOCAL_RANK", "0"))


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def _end_with_starter() -> None:
    sys.stdin.read()
    os._exit(1)


if __name__ == "__main__":
    try:
        main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4])
    except LaurelError as error:
        sys.exit(str(error))
