from __future__ import annotations

import pytest

from laurel.tracking.flops import mfu, peak_flops, training_flops


def test_worked_examples() -> None:
    assert training_flops(matmul_parameters=10, layers=1, hidden=2, lengths=[3]) == 288.0
    assert training_flops(matmul_parameters=10, layers=1, hidden=2, lengths=[3, 1]) == 288.0 + 60 + 12
    assert mfu(100.0, seconds=2.0, ranks=5, peak=20.0) == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("device", "peak"),
    [
        ("NVIDIA H100 80GB HBM3", 989e12),
        ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA H200", 989e12),
        ("NVIDIA H20", 148e12),
        ("NVIDIA A100-SXM4-80GB", 312e12),
        ("NVIDIA L4", 121e12),
        ("NVIDIA L40S", 362e12),
        ("Tesla K80", None),
    ],
)
def test_peaks_by_device_name(device: str, peak: float | None) -> None:
    assert peak_flops(device) == peak
