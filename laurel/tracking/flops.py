"""Model FLOPs utilization: arithmetic that training needs, against what the GPU could do in the same time."""

from __future__ import annotations

from collections.abc import Sequence

PEAK_FLOPS = {
    "B200": 2250e12,
    "GB200": 2500e12,
    "H200": 989e12,
    "H100 PCIe": 756e12,
    "H100": 989e12,
    "H20": 148e12,
    "L40S": 362e12,
    "A100": 312e12,
    "A10G": 70e12,
    "L4": 121e12,
}
"""Dense bf16 tensor-core FLOP/s from NVIDIA's data sheets (without sparsity), by a word of the device's name."""


def peak_flops(device_name: str) -> float | None:
    """Peak of a GPU by ``torch.cuda.get_device_name``; None if unknown (then no MFU is reported).

    Example: ``peak_flops("NVIDIA H100 80GB HBM3") == 989e12``.
    """
    words = device_name.split()
    for name in sorted(PEAK_FLOPS, key=len, reverse=True):
        if any(words[i : i + len(name.split())] == name.split() for i in range(len(words))):
            return PEAK_FLOPS[name]
    # Names such as "NVIDIA A100-SXM4-80GB" join the model to the rest by a hyphen.
    first = [word.split("-")[0] for word in words]
    return next((PEAK_FLOPS[word] for word in first if word in PEAK_FLOPS), None)


def training_flops(*, matmul_parameters: int, layers: int, hidden: int, lengths: Sequence[int]) -> float:
    """FLOPs of one forward and backward over rows of ``lengths`` tokens (recomputation for memory is not counted).

    ``matmul_parameters`` are those that multiply: all but the embedding look-up (a tied embedding multiplies once, in
    the head). Kaplan et al. 2020, section 2.1: 6 per parameter and token; causal attention adds
    ``6 * layers * hidden * length^2`` per row: two products of 2 * length^2 * hidden, half of it masked, times three
    with the backward pass. ``hidden`` is heads times head size.

    Example: 10 parameters, 1 layer, hidden 2, one row of 3: 6 * 10 * 3 + 6 * 2 * 9 = 288.
    """
    return 6.0 * matmul_parameters * sum(lengths) + 6.0 * layers * hidden * sum(n * n for n in lengths)


def mfu(flops: float, *, seconds: float, ranks: int, peak: float) -> float:
    """Fraction of the peak of all ranks. Example: 100 FLOPs in 2 s on 5 ranks with a peak of 20 each: 0.5."""
    return flops / (seconds * ranks * peak)
