"""What only a cache in pages does: sequences share pages, grow, and give way to each other."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tiny_models import prompt, request, tiny

from laurel.models.paged import PAGE, pages_for
from laurel.rollout.engine import EngineError
from laurel.rollout.native.engine import NativeEngine
from laurel.rollout.native.pages import PagePool
from laurel.rollout.native.steps import sizes_up_to
from laurel.types import Completion, Request


@pytest.fixture
def make() -> Any:
    made: list[NativeEngine] = []

    def engine(module: Any, **settings: Any) -> NativeEngine:
        made.append(NativeEngine(module, **{"max_slots": 8, "max_len": 4 * PAGE, "stop_token_ids": (), **settings}))
        return made[-1]

    yield engine
    for one in made:
        one.close()


def _answers(engine: NativeEngine, requests: list[Request]) -> list[Completion]:
    return [future.result(120) for future in engine.submit_all(requests)]


def _same(some: list[Completion], others: list[Completion]) -> None:
    for one, other in zip(some, others, strict=True):
        assert one.token_ids == other.token_ids
        assert one.finish_reason == other.finish_reason
        assert one.log_probs == pytest.approx(other.log_probs, abs=1e-4)


@pytest.mark.parametrize("length", [PAGE - 1, PAGE, PAGE + 1, 2 * PAGE + 7])
def test_groups_that_share_pages_answer_as_in_whole_slots(make: Any, length: int) -> None:
    """Prompts that end before, at and after a page's end, over more samples than slots; responses cross pages."""
    requests = [
        request(
            f"{group}/{sample}", prompt(length + group, group), seed=31 * group + sample, max_tokens=60 + 9 * sample
        )
        for group in range(2)
        for sample in range(5)
    ]
    _same(
        _answers(make(tiny(), paged=True, max_slots=4), requests),
        _answers(make(tiny(), paged=False, max_slots=4), requests),
    )


def test_a_shared_prompt_takes_its_pages_once(make: Any) -> None:
    engine = make(tiny(), paged=True)
    batch = engine._batch
    free = batch._pool.free
    waiting = engine._waiting
    from laurel.rollout.native.waiting import Sequence

    for i in range(6):
        waiting.add(Sequence(request(i, prompt(2 * PAGE + 5), seed=i, max_tokens=20), frozenset()))
    with torch.inference_mode():
        batch._take_in(batch.admit(waiting))
    # Two full pages for all six, and the third for each of them
    assert free - batch._pool.free == 2 + 6
    tables = [seat.pages for seat in batch.live]
    assert len({tuple(pages[:2]) for pages in tables}) == 1
    assert len({pages[2] for pages in tables}) == 6


def test_all_pages_are_free_again(make: Any) -> None:
    engine = make(tiny(), paged=True)
    free = engine._batch._pool.free
    requests = [request(i, prompt(40 + 15 * (i // 3)), seed=i, max_tokens=10 + 17 * (i % 5)) for i in range(20)]
    _answers(engine, requests)
    _answers(engine, [request(f"b{i}", prompt(9, i), seed=i, max_tokens=3) for i in range(9)])
    assert engine._batch._pool.free == free
    assert sorted(engine._batch._free_slots) == list(range(8))


def test_too_few_pages_make_the_last_wait_and_change_no_answer(make: Any) -> None:
    """Eight sequences that grow to four pages each, with twelve pages for all: some are put out and begin again from
    where they were."""
    requests = [request(i, prompt(20, i), seed=i, max_tokens=3 * PAGE, temperature=0.9) for i in range(8)]
    engine = make(tiny(), paged=True, cache_tokens=12 * PAGE)
    put_out: list[str] = []
    batch = engine._batch
    preempt = batch._preempt

    def counting(seat: Any) -> None:
        put_out.append(seat.sequence.request.id)
        preempt(seat)

    batch._preempt = counting
    found = _answers(engine, requests)
    assert put_out
    _same(found, _answers(make(tiny(), paged=False), requests))


def test_a_cache_of_hardly_more_than_one_sequence_comes_to_an_end(make: Any) -> None:
    """Prompts admitted in part, and sequences put out of their slots, want the same few pages."""
    requests = [request(i, prompt(PAGE + 10, i // 4), seed=i, max_tokens=2 * PAGE) for i in range(12)]
    found = _answers(make(tiny(), paged=True, cache_tokens=4 * PAGE), requests)
    _same(found, _answers(make(tiny(), paged=False), requests))


def test_top_p_beside_plain_sampling(make: Any) -> None:
    requests = [
        request(i, prompt(6, i // 2), seed=i, max_tokens=12, top_p=0.7 if i % 2 else 1.0, top_k=5 if i % 3 else -1)
        for i in range(9)
    ]
    _same(_answers(make(tiny(), paged=True), requests), _answers(make(tiny(), paged=False), requests))


def test_memory_that_runs_out_makes_the_cache_smaller_and_changes_no_answer(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twice, once while decoding: requests begin anew and get the tokens that they would have got."""
    from laurel.models import decoder

    requests = [request(i, prompt(20, i // 2), seed=i, max_tokens=30) for i in range(8)]
    expected = _answers(make(tiny(), paged=True), requests)
    engine = make(tiny(), paged=True)
    before = engine.cache_tokens
    calls = 0
    gated = decoder.gated

    def short_of_memory(*arguments: Any) -> torch.Tensor:
        nonlocal calls
        calls += 1
        if calls in (1, 12):
            raise torch.OutOfMemoryError("no memory left")
        return gated(*arguments)

    monkeypatch.setattr(decoder, "gated", short_of_memory)
    _same(_answers(engine, requests), expected)
    assert engine.cache_tokens < 0.6 * before
    monkeypatch.setattr(decoder, "gated", lambda *_: (_ for _ in ()).throw(torch.OutOfMemoryError("no memory left")))
    with pytest.raises(torch.OutOfMemoryError):
        engine.submit(request("never", prompt(5))).result(60)
    assert engine.pending == 0


def test_limits_are_told(make: Any) -> None:
    with pytest.raises(EngineError, match=r"room for 128 tokens, less than one sequence of max_len=256"):
        make(tiny(), paged=True, cache_tokens=PAGE)
    engine = make(tiny(), paged=True)
    with pytest.raises(EngineError, match="17 stop tokens; at most 16"):
        engine.submit(request(0, prompt(3), stop_token_ids=tuple(range(17))))


def test_pool_frees_what_nobody_holds() -> None:
    pool = PagePool(6)
    assert pool.free == 5  # page 0 is nobody's
    first, second = pool.take(2)
    pool.share([first])
    pool.release([first, second])
    assert pool.free == 4
    pool.release([first])
    assert pool.free == 5
    assert 0 not in pool.take(5)


def test_sizes_of_graphs() -> None:
    assert sizes_up_to(40) == [8, 16, 32, 40]
    assert sizes_up_to(1) == [1]
    assert pages_for(65) == 2
