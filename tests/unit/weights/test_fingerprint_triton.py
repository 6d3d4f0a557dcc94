"""The kernel's checksum is the plain one."""

from __future__ import annotations

import pytest
import torch
from triton_interpreter import triton_interpreter

from laurel.weights.fingerprint import _words, tensor_checksum

__all__ = ["triton_interpreter"]


@pytest.mark.parametrize("count", [1, 7, 4096, 70001])
def test_kernel(count: int, triton_interpreter: None, monkeypatch: pytest.MonkeyPatch) -> None:
    from laurel.weights.fingerprint_triton import add_checksum

    tensor = torch.randn(count, generator=torch.Generator().manual_seed(count)).bfloat16()
    total = torch.zeros((), dtype=torch.int64)
    period = 1 << 16
    add_checksum(_words(tensor), total, period)
    assert int(total) % (1 << 64) == tensor_checksum(tensor)
    if count == 70001:  # more words than a period needs a tensor of 8 times as many bytes
        long = torch.arange(70001, dtype=torch.int64) * 0x9E3779B97F4A7C1
        total.zero_()
        add_checksum(long, total, period)
        assert int(total) % (1 << 64) == tensor_checksum(long)
