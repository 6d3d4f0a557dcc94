"""Optimizer state that lies in CPU memory and comes to the GPU a part at a time, while a step works on it."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from laurel.config.machine import available_memory
from laurel.types import LaurelError

logger = logging.getLogger("laurel")
PART = 1 << 30  # bytes of a part: large enough for the full speed of the bus, small beside a GPU
_MOST_OF_FREE = 0.9


@dataclass(frozen=True)
class _Part:
    """``memory`` holds the tensors of all ``names``, end to end."""

    names: tuple[str, ...]
    memory: Tensor


class Offloaded:
    """Float32 tensors by name, at first 0, in page-locked CPU memory. ``tensors`` stay the same objects: only the
    memory that they show changes while ``parts`` brings them to ``device``."""

    def __init__(self, shapes: Mapping[str, Sequence[torch.Size]], device: torch.device):
        """``shapes`` of the tensors of each name, which travel together."""
        self.device = device
        needed = 4 * sum(_count(own) for own in shapes.values())
        free = available_memory()
        if needed > _MOST_OF_FREE * free:
            raise LaurelError(
                f"masters and moments take {needed / 2**30:.1f} GiB of CPU memory on each rank, and "
                f"{free / 2**30:.1f} GiB are free; set fsdp_config.optimizer_offload=False if they fit on the GPU, or "
                "use more ranks or a machine with more memory"
            )
        self.tensors = {name: [torch.empty(0) for _ in own] for name, own in shapes.items()}
        self._shapes = shapes
        self._parts = [_Part(names, self._locked(names)) for names in _cut(shapes, PART)]
        for one in self._parts:
            self._show(one, one.memory)

    def parts(self) -> Iterator[Sequence[str]]:
        """The names of one part after the other; meanwhile its tensors are on the device."""
        for part in self._parts:
            there = part.memory.to(self.device, non_blocking=True, copy=True)
            self._show(part, there)
            yield part.names
            part.memory.copy_(there, non_blocking=True)
            self._show(part, part.memory)
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)  # who reads them next may be a checkpoint, on the CPU

    def _show(self, part: _Part, memory: Tensor) -> None:
        start = 0
        for name in part.names:
            for tensor, shape in zip(self.tensors[name], self._shapes[name], strict=True):
                tensor.data = memory[start : start + shape.numel()].view(shape)
                start += shape.numel()

    def _locked(self, names: Sequence[str]) -> Tensor:
        """Page-locked as it is: PyTorch's own page-locked memory is rounded up to a power of two."""
        memory = torch.zeros(sum(_count(self._shapes[name]) for name in names))
        if self.device.type == "cuda" and memory.numel():
            library = torch.cuda.cudart()
            error = int(library.cudaHostRegister(memory.data_ptr(), memory.nbytes, 0))
            if error:
                logger.warning(
                    "CPU memory for masters and moments could not be locked (CUDA error %d), so moving them is several "
                    "times slower; raise the limit of locked memory (ulimit -l)",
                    error,
                )
            else:
                weakref.finalize(self, library.cudaHostUnregister, memory.data_ptr())
        return memory


def _cut(shapes: Mapping[str, Sequence[torch.Size]], part: int) -> list[tuple[str, ...]]:
    """Names in order, in parts of at most ``part`` bytes; one that is larger is a part of its own."""
    parts: list[list[str]] = []
    size = 0
    for name, own in shapes.items():
        count = 4 * _count(own)
        if not parts or size + count > part:
            parts.append([])
            size = 0
        parts[-1].append(name)
        size += count
    return [tuple(names) for names in parts]


def _count(shapes: Sequence[torch.Size]) -> int:
    return sum(shape.numel() for shape in shapes)
