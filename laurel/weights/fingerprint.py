"""Fingerprints of weights: one integer per tensor, made of every element's bits.

The sum is over integers modulo 2**64, so it does not depend on the order of summation, the device or the number of
threads: equal bits give equal fingerprints everywhere, and a tensor that differs in one element differs in its
fingerprint.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from laurel.types import Fingerprint

_PERIOD = 1 << 16  # positions with a weight of their own; a temporary of this size stays in a CPU's cache
_PERIODS_AT_ONCE = {"cpu": 1, "cuda": 256}
_WORD = 8
_weights: dict[torch.device, Tensor] = {}


def tensor_checksum(tensor: Tensor) -> int:
    """An integer in [0, 2**64) made of the raw bits of every element and its position.

    The bytes are read as 64-bit words (zeros fill up the last one); word i is multiplied by an odd number that depends
    on i, and all are summed modulo 2**64. An odd factor has an inverse, so changing one word always changes the sum.
    Shape and dtype are not part of it. A DTensor must be gathered first.
    """
    words = _words(tensor)
    weights = _position_weights(words.device)
    at_once = _PERIODS_AT_ONCE.get(words.device.type, 256)
    total = 0
    for first in range(0, words.numel(), _PERIOD * at_once):
        block = words[first : first + _PERIOD * at_once]
        whole = block.numel() // _PERIOD
        period = first // _PERIOD
        if whole:
            sums = (block[: whole * _PERIOD].view(whole, _PERIOD) * weights).sum(1)
            factors = torch.arange(period, period + whole, device=words.device) * 2 + 1
            total += int((sums * factors).sum())
        if whole * _PERIOD < block.numel():
            rest = block[whole * _PERIOD :]
            total += int((rest * weights[: rest.numel()]).sum()) * (2 * (period + whole) + 1)
    return total % (1 << 64)


def fingerprint(tensors: Mapping[str, Tensor] | Iterable[tuple[str, Tensor]], version: int) -> Fingerprint:
    """The fingerprint of named tensors as they lie in memory."""
    return Fingerprint(version, checksums(dict(tensors)))


def checksums(tensors: Mapping[str, Tensor]) -> dict[str, int]:
    """``tensor_checksum`` of each. A GPU is waited for once, not once for each tensor."""
    on_gpu = {name: tensor for name, tensor in tensors.items() if tensor.is_cuda}
    found = {name: tensor_checksum(tensor) for name, tensor in tensors.items() if name not in on_gpu}
    if on_gpu:
        from laurel.weights.fingerprint_triton import add_checksum

        device = next(iter(on_gpu.values())).device
        totals = torch.zeros(len(on_gpu), dtype=torch.int64, device=device)
        for total, tensor in zip(totals, on_gpu.values(), strict=True):
            add_checksum(_words(tensor), total, _PERIOD)
        found |= {name: total % (1 << 64) for name, total in zip(on_gpu, totals.tolist(), strict=True)}
    return {name: found[name] for name in tensors}


def _words(tensor: Tensor) -> Tensor:
    """The bytes of ``tensor`` as int64 words, without a copy where alignment allows."""
    raw = tensor.detach().contiguous().view(-1).view(torch.uint8)
    if raw.numel() % _WORD:
        raw = torch.cat([raw, raw.new_zeros(_WORD - raw.numel() % _WORD)])
    if raw.storage_offset() % _WORD or raw.data_ptr() % _WORD:
        raw = raw.clone()
    return raw.view(torch.int64)


def _position_weights(device: torch.device) -> Tensor:
    """(_PERIOD,) odd int64 factors, the same on every device: an integer hash of the position."""
    if device not in _weights:
        position = torch.arange(1, _PERIOD + 1, dtype=torch.int64)
        mixed = position * 0x2545F4914F6CDD1D  # integer tensors wrap modulo 2**64
        mixed = (mixed ^ ((mixed >> 29) & 0x7FFFFFFFF)) * 0x5851F42D4C957F2D
        _weights[device] = (mixed | 1).to(device)
    return _weights[device]
