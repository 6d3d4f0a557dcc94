"""From logits to tokens and their log-probabilities, for rows that each have their own settings and random number."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from laurel.rollout.seeds import GOLDEN, MASK, MIX_1, MIX_2
from laurel.types import SamplingParams

# Sorting a whole vocabulary costs more than the model of a small one: a nucleus is looked for among this many first.
_NUCLEUS_FIRST = 1024
_LONGEST_BLOCK = 512


def signed(value: int) -> int:
    """The int64 with the same 64 bits."""
    value &= MASK
    return value - (1 << 64) if value >> 63 else value


def uniforms(seeds: Tensor, counters: Tensor) -> Tensor:
    """``laurel.rollout.seeds.uniform`` of (n,) int64 seeds and counters, as float64 in [0, 1)."""
    state = seeds + (counters + 1) * signed(GOLDEN)  # int64 wraps modulo 2**64
    state = (state ^ _shift_right(state, 30)) * signed(MIX_1)
    state = (state ^ _shift_right(state, 27)) * signed(MIX_2)
    return _shift_right(state ^ _shift_right(state, 31), 11).double() * 2.0**-53


def _shift_right(value: Tensor, bits: int) -> Tensor:
    return (value >> bits) & ((1 << (64 - bits)) - 1)


def sample(logits: Tensor, settings: Sequence[SamplingParams], uniform: Tensor) -> tuple[Tensor, Tensor]:
    """One token per row: (n, V) logits and (n,) random numbers to token ids (n,) and log-probabilities (n,) float32.

    The log-probability is log_softmax(logits / temperature) over the whole vocabulary, before top-k and top-p, and at
    temperature 0, which takes the likeliest token, that of the logits as they are. Sampling inverts the cumulative
    distribution: in the order of token ids, or from the likeliest down in rows with top-k or top-p.
    """
    temperatures = [one.temperature or 1.0 for one in settings]
    if any(value != 1.0 for value in temperatures):
        logits = logits / torch.tensor(temperatures, device=logits.device)[:, None]
    probabilities = torch.softmax(logits, -1, dtype=torch.float32)
    vocab = logits.shape[1]
    greedy = [i for i, one in enumerate(settings) if one.temperature == 0]
    filtered = [i for i, one in enumerate(settings) if one.temperature and (one.top_p < 1 or 0 < one.top_k < vocab)]
    if len(greedy) == len(settings):
        tokens = logits.argmax(-1)
    elif len(filtered) == len(settings):
        tokens = _filtered(probabilities, settings, uniform)
    else:
        tokens = invert_cdf(probabilities, uniform)
        if greedy:
            tokens[greedy] = logits[greedy].argmax(-1)
        if filtered:
            chosen = [settings[i] for i in filtered]
            tokens[filtered] = _filtered(probabilities[filtered], chosen, uniform[filtered])
    return tokens, probabilities.gather(1, tokens[:, None])[:, 0].log()


def invert_cdf(weights: Tensor, uniform: Tensor) -> Tensor:
    """(n,) first index of each row of ``weights`` (n, V) >= 0 at which the running sum passes uniform * total.

    Sums of blocks are taken first and only the block that is hit is summed element by element, in float64: a running
    sum over a whole vocabulary is slower and, in float32, less exact.
    """
    vocab, block = weights.shape[1], _block(weights.shape[1])
    if vocab % block:
        weights = torch.nn.functional.pad(weights, (0, -vocab % block))
    blocks = weights.view(weights.shape[0], -1, block)
    hit, rest = _find(blocks.sum(-1).double(), uniform[:, None])
    inside = blocks[torch.arange(len(blocks), device=weights.device), hit[:, 0]].double()
    within, _ = _find(inside, rest)
    return (hit[:, 0] * block + within[:, 0]).clamp_(max=vocab - 1)  # only weights that are not numbers need it


def _find(weights: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """Index hit by uniform (n, 1) in rows of weights (n, m) float64, and where in that element's weight, in [0, 1)."""
    running = weights.cumsum(-1)
    target = uniform * running[:, -1:]
    hit = torch.searchsorted(running, target, right=True).clamp_(max=weights.shape[1] - 1)
    weight = weights.gather(1, hit)
    rest = (target - (running.gather(1, hit) - weight)) / weight
    return hit, rest.clamp(0.0, 1.0 - 2.0**-53)


def _block(vocab: int) -> int:
    """The largest power of two that divides ``vocab``, up to a bound; 64 if that would be small."""
    power = min(vocab & -vocab, _LONGEST_BLOCK)
    return power if power >= 32 else 64


def _filtered(probabilities: Tensor, settings: Sequence[SamplingParams], uniform: Tensor) -> Tensor:
    """Sample from rows cut to top-k and then to the nucleus: the fewest likeliest tokens that together reach top_p."""
    vocab = probabilities.shape[1]
    top_k = torch.tensor([one.top_k if one.top_k > 0 else vocab for one in settings], device=probabilities.device)
    top_p = torch.tensor([one.top_p for one in settings], device=probabilities.device, dtype=torch.float64)
    count = min(vocab, max(_NUCLEUS_FIRST, *(one.top_k for one in settings)))
    while True:
        values, ids = probabilities.topk(count, sorted=True)
        weights = values.double()
        weights[torch.arange(count, device=weights.device) >= top_k[:, None]] = 0.0
        before = weights.cumsum(-1) - weights
        # top-p counts within what top-k left; without top-k that is everything
        whole = torch.where(top_k < vocab, weights.sum(-1), 1.0)
        kept = before < (top_p * whole)[:, None]
        if count == vocab or bool(((top_k <= count) | ~kept[:, -1]).all()):
            break
        count = vocab
    weights[~kept] = 0.0
    hit, _ = _find(weights, uniform[:, None])
    return ids.gather(1, hit)[:, 0]
