"""Buckets of weights between two processes of one machine, through memory that both see.

On a CPU that is an anonymous file which the receiver's process inherits, on a GPU a buffer opened by CUDA IPC. Only one
bucket is held: the next one is written over it, when the receiver has taken the last.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

_ALIGN = 256
_STEP = 1 << 20  # the memory grows by whole MiB, so that buckets of nearly one size share it


@dataclass(frozen=True)
class Entry:
    """Where one tensor lies in a parcel."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int


@dataclass(frozen=True)
class Parcel:
    """What the receiver is told of a bucket. ``handle`` opens the memory of ``size`` bytes; None is the inherited file.

    Picklable. ``device`` is the UUID of the GPU that the memory is on, "" on a CPU.
    """

    entries: tuple[Entry, ...]
    size: int
    handle: tuple[Any, ...] | None = None
    device: str = ""


class Sender:
    """Packs buckets into one piece of memory on ``device``, which grows to the largest bucket."""

    def __init__(self, device: torch.device):
        self.device = device
        self.file = os.memfd_create("laurel-weights") if device.type == "cpu" else None
        """Descriptor of the memory on a CPU, which the receiver's process inherits."""
        self._map: mmap.mmap | None = None
        self._memory: Tensor | None = None
        self._handle: tuple[Any, ...] | None = None

    def pack(self, bucket: Mapping[str, Tensor]) -> Parcel:
        """Copy ``bucket`` in. The last parcel is void from here on."""
        entries, size = _layout(bucket)
        memory = self._room(size)
        for entry, tensor in zip(entries, bucket.values(), strict=True):
            _view(memory, entry).copy_(tensor)
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        uuid = f"GPU-{torch.cuda.get_device_properties(self.device).uuid}" if self.device.type == "cuda" else ""
        return Parcel(entries, memory.numel(), self._handle, uuid)

    def release(self) -> None:
        """Give the memory back; the next parcel takes it anew."""
        self._memory = self._handle = self._map = None
        if self.file is not None:
            os.ftruncate(self.file, 0)

    def close(self) -> None:
        """Release, and close the file: no parcel can be made any more."""
        self.release()
        if self.file is not None:
            os.close(self.file)
            self.file = None

    def _room(self, size: int) -> Tensor:
        if self._memory is None or self._memory.numel() < size:
            size = -(-size // _STEP) * _STEP
            self._memory = None  # before it is taken anew
            if self.file is not None:
                os.ftruncate(self.file, size)
                self._map = mmap.mmap(self.file, size)
                self._memory = torch.frombuffer(self._map, dtype=torch.uint8)
            else:
                self._memory = torch.empty(size, dtype=torch.uint8, device=self.device)
                self._handle = self._memory.untyped_storage()._share_cuda_()
        return self._memory


class Receiver:
    """Opens parcels; ``file`` is the descriptor that was inherited, on a CPU."""

    def __init__(self, file: int | None = None):
        self._file = file
        self._opened: tuple[Any, ...] | int | None = None
        self._memory: Tensor | None = None

    def open(self, parcel: Parcel) -> dict[str, Tensor]:
        """Tensors by name, in the sender's memory: valid until the sender is told to go on, and not to be written."""
        key = parcel.size if parcel.handle is None else parcel.handle
        if self._memory is None or self._opened != key:
            self.release()
            self._memory = self._map_file(parcel.size) if parcel.handle is None else _map_gpu(parcel)
            self._opened = key
        return {entry.name: _view(self._memory, entry) for entry in parcel.entries}

    def release(self) -> None:
        """Let go of the sender's memory."""
        self._memory = self._opened = None

    def _map_file(self, size: int) -> Tensor:
        if self._file is None:
            raise ValueError("a parcel of a CPU needs the file that its sender writes to")
        return torch.frombuffer(mmap.mmap(self._file, size), dtype=torch.uint8)


def _map_gpu(parcel: Parcel) -> Tensor:
    assert parcel.handle is not None
    devices = range(torch.cuda.device_count())
    (device,) = [i for i in devices if f"GPU-{torch.cuda.get_device_properties(i).uuid}" == parcel.device]
    torch.cuda.init()
    storage = torch.UntypedStorage._new_shared_cuda(device, *parcel.handle[1:])
    return torch.empty(0, dtype=torch.uint8, device=f"cuda:{device}").set_(storage)[: parcel.size]


def _layout(bucket: Mapping[str, Tensor]) -> tuple[tuple[Entry, ...], int]:
    entries, offset = [], 0
    for name, tensor in bucket.items():
        entries.append(Entry(name, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), offset))
        offset += -(-tensor.numel() * tensor.element_size() // _ALIGN) * _ALIGN
    return tuple(entries), max(offset, 1)


def _view(memory: Tensor, entry: Entry) -> Tensor:
    dtype = getattr(torch, entry.dtype)
    count = _product(entry.shape)
    return memory[entry.offset : entry.offset + count * dtype.itemsize].view(dtype).view(entry.shape)


def _product(shape: Sequence[int]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count
