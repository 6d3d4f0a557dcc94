"""What a step feeds, and from its logits the next token of every slot: stored, counted, ended or not.

Sampling inverts the cumulative distribution in the order of token ids, as sampling.py does, with the same random number
for the same seed and count: a request gets the same text whatever else is in the batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from laurel.models.paged import PAGE
from laurel.rollout.native.sampling import invert_cdf, uniforms
from laurel.rollout.native.state import BROKEN, FULL, LIVE, STOPPED, SlotState


@dataclass(frozen=True)
class Inputs:
    """What a step feeds, by row: token, its position, its place in the cache (n,) int64, and ``lengths`` (n,) int32,
    the tokens in the cache with it."""

    token: Tensor
    position: Tensor
    place: Tensor
    lengths: Tensor


def inputs(state: SlotState, slots: Tensor) -> Inputs:
    """The inputs of the next step for the rows ``slots`` (n,) int32."""
    if slots.is_cuda:
        from laurel.rollout.native import draw_triton

        return Inputs(*draw_triton.inputs(state, slots))
    position = state.position[slots]
    place = state.table[slots, position // PAGE].long() * PAGE + position % PAGE
    return Inputs(state.token[slots], position, place, (position + 1).int())


def draw(logits: Tensor, slots: Tensor, state: SlotState, source: Tensor | None = None) -> None:
    """Give each live slot of ``slots`` (n,) int32 a token. ``source`` (n,): which row of ``logits`` (m, V) is whose,
    if several share one.

    The log-probability is log_softmax(logits / temperature) at the token; at temperature 0, which takes the likeliest
    token, that of the logits as they are.
    """
    if logits.is_cuda:
        from laurel.rollout.native import draw_triton

        draw_triton.draw(logits, slots, state, source)
        return
    rows = logits if source is None else logits[source]
    temperature = state.temperature[slots]
    scaled = rows / torch.where(temperature == 0, 1.0, temperature)[:, None]
    log_probs = torch.log_softmax(scaled.float(), -1)
    sampled = invert_cdf(log_probs.exp(), uniforms(state.seed[slots], state.count[slots]))
    token = torch.where(temperature == 0, rows.argmax(-1), sampled)
    take(token, log_probs.gather(1, token[:, None])[:, 0], slots, state)


def take(token: Tensor, log_prob: Tensor, slots: Tensor, state: SlotState) -> None:
    """Store a token (n,) int64 and its log-probability for each live slot of ``slots``, and see whether it ends."""
    alive = state.status[slots] == LIVE
    slots, token, log_prob = slots[alive].long(), token[alive], log_prob[alive]
    finite = log_prob.isfinite()
    state.status[slots[~finite]] = BROKEN
    slots, token, log_prob = slots[finite], token[finite], log_prob[finite]
    at = state.count[slots]
    state.out_tokens[slots, at] = token.int()
    state.out_log_probs[slots, at] = log_prob.float()
    state.token[slots] = token
    state.position[slots] += 1
    state.count[slots] = at + 1
    full = torch.where(at + 1 >= state.limit[slots], FULL, LIVE)
    stopped = (state.stops[slots] == token[:, None]).any(-1)
    state.status[slots] = torch.where(stopped, STOPPED, full).to(torch.int8)
