"""Sampling on the slots' state: the plain form against sampling.py, and the Triton kernel against the plain form."""

from __future__ import annotations

from dataclasses import fields

import pytest
import torch

from laurel.models.paged import PAGE
from laurel.rollout.native.draw import draw, inputs
from laurel.rollout.native.sampling import sample, signed, uniforms
from laurel.rollout.native.state import BROKEN, FULL, LIVE, STOPPED, SlotState
from laurel.types import SamplingParams

_VOCAB = 300


def _state() -> SlotState:
    state = SlotState.empty(6, 100, "cpu")
    state.status[:6] = LIVE
    state.seed.copy_(torch.tensor([signed(5 + i * 7919 << 50) for i in range(7)]))
    state.limit.fill_(50)
    state.temperature.copy_(torch.tensor([1.0, 0.0, 0.7, 1.0, 2.0, 1.0, 0.0]))
    state.count.copy_(torch.arange(7))
    state.position.copy_(torch.arange(7) * 10)
    return state


def _columns(state: SlotState) -> dict[str, torch.Tensor]:
    return {column.name: getattr(state, column.name).clone() for column in fields(state)}


def _on(kernel: str, monkeypatch: pytest.MonkeyPatch) -> object:
    if kernel == "plain":
        return draw
    from laurel.rollout.native import draw_triton

    monkeypatch.setattr(draw_triton, "_BLOCK", 64)
    return lambda logits, slots, state, source=None: draw_triton.draw(logits, slots, state, source)


@pytest.fixture(params=["plain", "triton"])
def drawing(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, triton_interpreter: None) -> object:
    return _on(request.param, monkeypatch)


def test_tokens_are_those_of_the_slots_engine(drawing) -> None:  # type: ignore[no-untyped-def]
    torch.manual_seed(0)
    logits, state = torch.randn(5, _VOCAB) * 3, _state()
    slots = torch.tensor([4, 0, 1, 5, 2], dtype=torch.int32)
    settings = [SamplingParams(50, temperature=float(state.temperature[slot])) for slot in slots]
    random = uniforms(state.seed[slots], state.count[slots])
    tokens, log_probs = sample(logits, settings, random)
    before = _columns(state)
    drawing(logits, slots, state)
    for row, slot in enumerate(slots.tolist()):
        count = int(before["count"][slot])
        assert state.token[slot] == state.out_tokens[slot, count] == tokens[row]
        torch.testing.assert_close(state.out_log_probs[slot, count], log_probs[row])
        assert state.count[slot] == count + 1
        assert state.position[slot] == before["position"][slot] + 1
    untouched = torch.tensor([3, 6])
    for name, column in _columns(state).items():
        assert torch.equal(column[untouched], before[name][untouched]), name


def test_siblings_share_a_row_of_logits(drawing) -> None:  # type: ignore[no-untyped-def]
    torch.manual_seed(1)
    logits = torch.randn(2, _VOCAB)
    slots, source = torch.tensor([0, 2, 3, 4], dtype=torch.int32), torch.tensor([1, 1, 0, 1])
    shared, apart = _state(), _state()
    drawing(logits, slots, shared, source)
    drawing(logits[source].contiguous(), slots, apart)
    assert torch.equal(shared.token, apart.token)
    torch.testing.assert_close(shared.out_log_probs, apart.out_log_probs)


def test_ends_and_what_never_changes(drawing) -> None:  # type: ignore[no-untyped-def]
    logits = torch.full((5, _VOCAB), -1e9)
    logits[:, 77] = 0.0
    logits[3] = float("nan")
    state = _state()
    state.stops[0, 2] = 77
    state.limit[1] = 2  # its count is 1
    state.stops[2, 0] = 78
    state.status[4] = STOPPED
    before = _columns(state)
    drawing(logits, torch.tensor([0, 1, 2, 3, 4], dtype=torch.int32), state)
    assert state.status[:5].tolist() == [STOPPED, FULL, LIVE, BROKEN, STOPPED]
    assert state.count[:5].tolist() == [1, 2, 3, 3, 4], "a slot that is broken or not live takes no token"
    assert state.token[:3].tolist() == [77, 77, 77]
    assert state.out_log_probs[0, 0] == 0.0
    assert torch.equal(state.position[3:], before["position"][3:])


def test_frequencies_follow_the_logits(drawing) -> None:  # type: ignore[no-untyped-def]
    """600 draws of one distribution over 4 tokens of which each lies in a block of its own."""
    probabilities = torch.tensor([0.5, 0.3, 0.15, 0.05])
    places = torch.tensor([3, 70, 200, 299])
    logits = torch.full((1, _VOCAB), float("-inf"))
    logits[0, places] = probabilities.log()
    draws = 200
    state = SlotState.empty(draws, 8, "cpu")
    state.status[:draws] = LIVE
    state.limit.fill_(8)
    state.temperature.fill_(1.0)
    state.seed.copy_(torch.randint(1 << 40, (draws + 1,), generator=torch.Generator().manual_seed(3)))
    for _ in range(3):
        drawing(logits.expand(draws, -1).contiguous(), torch.arange(draws, dtype=torch.int32), state)
    seen = state.out_tokens[:draws, :3].flatten()
    found = torch.tensor([(seen == place).sum() for place in places]) / seen.numel()
    assert (seen[:, None] == places).any(1).all(), "a token of probability 0 was drawn"
    torch.testing.assert_close(found, probabilities, atol=0.06, rtol=0.0)


@pytest.mark.parametrize("kernel", ["plain", "triton"])
def test_inputs_of_the_next_step(kernel: str, triton_interpreter: None) -> None:
    state = _state()
    state.table.copy_(torch.randint(1, 99, state.table.shape).int())
    state.position.copy_(torch.tensor([0, PAGE - 1, PAGE, 70, 99, 5, 0]))
    state.token.copy_(torch.arange(7) + 40)
    slots = torch.tensor([4, 1, 2, 0], dtype=torch.int32)
    if kernel == "plain":
        made = inputs(state, slots)
        token, position, place, lengths = made.token, made.position, made.place, made.lengths
    else:
        from laurel.rollout.native import draw_triton

        token, position, place, lengths = draw_triton.inputs(state, slots)
    assert token.tolist() == [44, 41, 42, 40]
    assert position.tolist() == [99, PAGE - 1, PAGE, 0]
    assert lengths.tolist() == [100, PAGE, PAGE + 1, 1]
    expected = [
        int(state.table[4, 1]) * PAGE + 99 - PAGE,
        int(state.table[1, 0]) * PAGE + PAGE - 1,
        int(state.table[2, 1]) * PAGE,
        int(state.table[0, 0]) * PAGE,
    ]
    assert place.tolist() == expected
