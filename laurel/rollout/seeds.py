"""Seeds of samples: a hash of what names a sample, so that they do not depend on the order of sampling."""

from __future__ import annotations

MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15
MIX_1 = 0xBF58476D1CE4E5B9
MIX_2 = 0x94D049BB133111EB


def mix(state: int) -> int:
    """SplitMix64's output function (Steele, Lea, Flood 2014, figure 16): a bijection of 64-bit integers."""
    state &= MASK
    state = (state ^ (state >> 30)) * MIX_1 & MASK
    state = (state ^ (state >> 27)) * MIX_2 & MASK
    return state ^ (state >> 31)


def sample_seed(trainer_seed: int, step: int, prompt_index: int, sample: int) -> int:
    """The seed, in [0, 2**64), of one sample of one prompt in one step.

    For fixed other arguments it is a bijection of each argument, so samples of one prompt never share a seed.
    """
    state = 0
    for value in (trainer_seed, step, prompt_index, sample):
        state = mix((state + GOLDEN + value) & MASK)
    return state


def uniform(seed: int, counter: int) -> float:
    """Random number ``counter`` (0 is the first) of a seed, in [0, 1) with 53 bits: SplitMix64's stream."""
    return (mix((seed + (counter + 1) * GOLDEN) & MASK) >> 11) * 2.0**-53
