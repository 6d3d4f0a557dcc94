import math

import pytest
import torch

from laurel.rollout.native.sampling import invert_cdf, sample, signed, uniforms
from laurel.rollout.seeds import uniform
from laurel.types import SamplingParams

GRID = 20_000


def draw(logits, **sampling):
    """Frequencies of the tokens when the random number runs evenly over [0, 1): the sampled distribution to 1/GRID."""
    rows = torch.tensor(logits).expand(GRID, -1)
    numbers = (torch.arange(GRID, dtype=torch.float64) + 0.5) / GRID
    tokens, log_probs = sample(rows, [SamplingParams(max_tokens=1, **sampling)] * GRID, numbers)
    frequencies = torch.bincount(tokens, minlength=len(logits)).double() / GRID
    return frequencies, dict(zip(tokens.tolist(), log_probs.tolist(), strict=True))


def test_uniforms_are_the_counter_based_stream():
    seeds = [0, 1, 1234567, 2**63 + 11, 2**64 - 1]
    counters = [0, 1, 2, 511, 3]
    found = uniforms(torch.tensor([signed(seed) for seed in seeds]), torch.tensor(counters))
    assert found.tolist() == [uniform(seed, counter) for seed, counter in zip(seeds, counters, strict=True)]


def test_uniforms_are_uniform():
    numbers = uniforms(torch.arange(1000).repeat_interleave(64), torch.arange(64).repeat(1000))
    counts = torch.histc(numbers.float(), bins=16, min=0, max=1)
    chi_square = float(((counts - 4000) ** 2 / 4000).sum())
    assert chi_square < 37.7  # 15 degrees of freedom: above it once in a thousand
    assert 0 <= float(numbers.min()) < float(numbers.max()) < 1


def test_signed_keeps_the_bits():
    assert [signed(x) for x in (5, 2**63, 2**64 - 1, -1)] == [5, -(2**63), -1, -1]


@pytest.mark.parametrize("width", [3, 64, 97, 1000, 2**11])
def test_invert_cdf_equals_a_running_sum(width):
    weights = torch.rand(200, width, generator=torch.Generator().manual_seed(width))
    weights[:, width // 2 :] *= torch.rand(1, generator=torch.Generator().manual_seed(1))
    numbers = torch.rand(200, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    running = weights.double().cumsum(-1)
    target = numbers[:, None] * running[:, -1:]
    wanted = (running <= target).sum(-1)
    found = invert_cdf(weights, numbers)
    margin = (running - target).abs().amin(-1) / running[:, -1]
    assert torch.equal(found[margin > 1e-7], wanted[margin > 1e-7])
    assert (margin > 1e-7).sum() > 190


def test_invert_cdf_never_takes_what_has_no_weight():
    weights = torch.zeros(3, 130)
    weights[:, 5], weights[:, 77] = 1.0, 3.0
    assert invert_cdf(weights, torch.tensor([0.0, 0.25, 1 - 2.0**-53], dtype=torch.float64)).tolist() == [5, 77, 77]


def test_temperature_scales_the_logits():
    frequencies, log_probs = draw([0.0, math.log(4.0)], temperature=2.0)  # odds 1 : sqrt(4)
    assert frequencies.tolist() == pytest.approx([1 / 3, 2 / 3], abs=1e-4)
    assert log_probs == pytest.approx({0: math.log(1 / 3), 1: math.log(2 / 3)}, abs=1e-6)


PROBABILITIES = [0.1, 0.4, 0.05, 0.3, 0.15]
LOGITS = [math.log(p) for p in PROBABILITIES]


@pytest.mark.parametrize(
    ("sampling", "kept"),
    [
        ({"top_k": 2}, {1: 0.4, 3: 0.3}),
        ({"top_p": 0.69}, {1: 0.4, 3: 0.3}),
        ({"top_p": 0.71}, {1: 0.4, 3: 0.3, 4: 0.15}),
        ({"top_p": 0.01}, {1: 0.4}),
        # the nucleus is counted within the two kept by top-k: 4/7 < 0.6, so both stay; 4/7 > 0.5, so one is enough
        ({"top_k": 2, "top_p": 0.6}, {1: 0.4, 3: 0.3}),
        ({"top_k": 2, "top_p": 0.5}, {1: 0.4}),
        ({"top_k": 5, "top_p": 1.0}, dict(enumerate(PROBABILITIES))),
    ],
)
def test_top_k_and_top_p_renormalize_what_is_kept(sampling, kept):
    frequencies, log_probs = draw(LOGITS, **sampling)
    whole = sum(kept.values())
    assert frequencies.tolist() == pytest.approx([kept.get(i, 0.0) / whole for i in range(5)], abs=1e-4)
    # the log-probability is that of the unfiltered distribution
    assert log_probs == pytest.approx({token: math.log(p) for token, p in kept.items()}, abs=1e-6)


def test_a_nucleus_longer_than_the_first_look():
    """Over 2000 tokens a nucleus of 0.9 can hold 1800, more than the 1024 that are looked at first."""
    logits = torch.linspace(0.0, 0.01, 2000).expand(300, -1)
    numbers = torch.linspace(0.0, 1.0 - 1e-9, 300, dtype=torch.float64)
    tokens, _ = sample(logits, [SamplingParams(max_tokens=1, top_p=0.9)] * 300, numbers)
    # from the likeliest, 1999, down to the last of the nucleus: 0.9 of the mass is 0.899 of the tokens at this slope
    assert (int(tokens[0]), int(tokens[-1])) == (1999, pytest.approx(2000 - 1799, abs=3))


def test_each_row_has_its_own_settings():
    rows = torch.tensor([LOGITS] * 4)
    settings = [
        SamplingParams(max_tokens=1, temperature=0),
        SamplingParams(max_tokens=1, top_k=1),
        SamplingParams(max_tokens=1, temperature=0.5),
        SamplingParams(max_tokens=1),
    ]
    tokens, log_probs = sample(rows, settings, torch.full((4,), 0.03, dtype=torch.float64))
    assert tokens.tolist() == [1, 1, 0, 0]  # in the third row token 0 holds 0.01 / 0.285 = 0.035: 0.03 is within
    squares = sum(p * p for p in PROBABILITIES)
    wanted = [math.log(0.4), math.log(0.4), math.log(0.01 / squares), math.log(0.1)]
    assert log_probs.tolist() == pytest.approx(wanted, abs=1e-6)
