"""What the hardware needs at least: arithmetic at the rate of a large matrix product, and traffic at that of a copy.

Both rates were measured on one H200: 790 TFLOP/s in bf16 on random data, 4.3 TB/s of device memory. Products with
weights and attention follow each other within a layer, so their times add up; for each of the two the longer of
arithmetic and traffic counts. Launches, sampling and the host count nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from benchmarks.shapes import Sizes

FLOPS = 790e12
BYTES = 4.3e12
BF16 = 2


def attention_pairs(length: int, start: int = 0) -> int:
    """Pairs of a token and one that it attends to, itself included, over tokens ``start`` to ``length``.

    Example: tokens 0, 1, 2 attend to 1, 2 and 3: 6 pairs; from token 1 on, 5.
    """
    return (length * (length + 1) - start * (start + 1)) // 2


def prefill(sizes: Sizes, prompts: Iterable[int], *, flops: float = FLOPS) -> float:
    """Seconds for the distinct prompts of these lengths; only their last tokens go through the head."""
    lengths = list(prompts)
    products = 2 * sizes.backbone * sum(lengths)
    return (products + 4 * sizes.layers * sizes.width * sum(attention_pairs(n) for n in lengths)) / flops


def decode(
    sizes: Sizes, sequences: Sequence[tuple[int, int]], slots: int, *, flops: float = FLOPS, moved: float = BYTES
) -> float:
    """Seconds to give each (prompt, response) its response with ``slots`` at once.

    A step reads the weights once, and of each sequence the whole cache, prompts that are shared once per sequence. The
    first token of a response comes from the prefill and is charged here, with its pass through the head.

    Example: one sequence of 2 + 2 tokens with 1 slot takes 2 steps of weights and reads 2 + 3 places of its cache.
    """
    tokens = sum(response for _, response in sequences)
    steps = max(max(response for _, response in sequences), -(-tokens // slots))
    places = sum(attention_pairs(prompt + response - 1, prompt - 1) for prompt, response in sequences)
    products = max(2 * sizes.multiplying * tokens / flops, steps * sizes.multiplying * BF16 / moved)
    attention = max(4 * sizes.layers * sizes.width * places / flops, places * sizes.cache_per_token * BF16 / moved)
    return products + attention


def rollout(sizes: Sizes, prompts: Sequence[int], sequences: Sequence[tuple[int, int]], slots: int) -> float:
    """Seconds of a whole rollout: each distinct prompt computed once, then every response."""
    return prefill(sizes, prompts) + decode(sizes, sequences, slots)


def training(sizes: Sizes, *, computed: int, scored: int, lengths: Iterable[int], passes: int = 3) -> float:
    """FLOPs of an update (``passes`` 3: forward and twice that backward) or of a forward alone (1).

    ``computed`` tokens go through the backbone, ``scored`` ones through the head; rows of ``lengths`` attend causally.
    Per parameter and token a forward takes 2 (Kaplan et al. 2020, section 2.1); a pair in attention takes
    4 * width per layer, of which a row of n tokens has n^2 / 2.

    Example: with 10 and 2 parameters, 1 layer of width 2, one row of 3 tokens of which 1 is scored, a forward takes
    2 * (10 * 3 + 2 * 1) + 4 * 2 * 4.5 = 100.
    """
    products = 2 * (sizes.backbone * computed + sizes.head * scored)
    attention = 4 * sizes.layers * sizes.width * sum(n * n / 2 for n in lengths)
    return passes * (products + attention)
