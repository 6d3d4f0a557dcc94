"""CUDA graphs: a fixed piece of work recorded once and launched as one."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor


class Graphs:
    """Pieces of work by key, each captured when it first comes. Recorded are addresses: what a piece reads and writes
    must stay where it is while this object lives. All share one pool of memory, since one runs at a time."""

    def __init__(self) -> None:
        self._graphs: dict[Hashable, tuple[torch.cuda.CUDAGraph, Tensor]] = {}
        self._pool: Any = None

    def run(self, key: Hashable, work: Callable[[], Tensor]) -> Tensor:
        """What ``work`` returns. It is overwritten by the next piece that runs."""
        known = self._graphs.get(key)
        if known is None:
            result = work()  # as it is: this compiles kernels, which a capture may not do
            self._graphs[key] = self._capture(work)
            return result
        known[0].replay()
        return known[1]

    def _capture(self, work: Callable[[], Tensor]) -> tuple[torch.cuda.CUDAGraph, Tensor]:
        """Without the garbage collection and emptied caches of torch.cuda.graph, which take longer than the capture."""
        graph = torch.cuda.CUDAGraph()
        current, stream = torch.cuda.current_stream(), torch.cuda.Stream()
        stream.wait_stream(current)
        with torch.cuda.stream(stream):
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                result = work()
            finally:
                graph.capture_end()
        current.wait_stream(stream)
        self._pool = self._pool or graph.pool()
        return graph, result
