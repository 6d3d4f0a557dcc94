"""What every engine does, on each that runs here."""

import asyncio
import random

import pytest

from laurel.rollout.engine import EngineError
from vllm_engine.asked import answers, full_log_probs, prompt, request


@pytest.mark.parametrize("temperature", [1.0, 0.7, 0.0])
@pytest.mark.parametrize("cut", [{}, {"top_p": 0.8}, {"top_k": 5}, {"top_k": 20, "top_p": 0.5}])
def test_log_probs_are_those_of_the_whole_vocabulary_at_the_temperature(engine, module, temperature, cut):
    asked = [request(i, prompt(3 + i), seed=i, temperature=temperature, **cut) for i in range(4)]
    for one, answer in zip(asked, answers(engine, asked), strict=True):
        exact = full_log_probs(module, one.prompt_ids, answer.token_ids, temperature or 1.0)
        assert answer.log_probs == pytest.approx(exact.tolist(), abs=1e-4)


def test_greedy_is_the_likeliest_token(engine, module):
    import torch

    ids = prompt(9)
    wanted = module.generate(
        torch.tensor([ids]), max_new_tokens=12, do_sample=False, eos_token_id=None, pad_token_id=0
    )[0, 9:].tolist()
    (answer,) = answers(engine, [request("g", ids, max_tokens=12, temperature=0, ignore_eos=True)])
    assert list(answer.token_ids) == wanted
    assert answer.finish_reason == "length"


def test_a_seed_decides_its_samples_whatever_else_runs(engine):
    asked = [request(i, prompt(4 + i % 3), seed=7 * i, max_tokens=3 + i % 9) for i in range(24)]
    together = {one.request_id: one for one in answers(engine, asked)}
    random.Random(0).shuffle(asked)
    for one in asked[:8]:
        assert answers(engine, [one])[0].token_ids == together[one.id].token_ids
    assert len({one.token_ids for one in together.values()}) > 20


def test_seeds_of_64_bits_are_told_apart(engine):
    low = 12345
    first, second = (
        answers(engine, [request("s", prompt(5), seed=seed, max_tokens=12, ignore_eos=True)])[0].token_ids
        for seed in (low, low + (1 << 63))
    )
    assert first != second


def test_stop_tokens_end_a_turn_and_belong_to_it(engine):
    free = answers(engine, [request("free", prompt(6), temperature=0, ignore_eos=True)])[0].token_ids
    stop = free[3]
    cut = free.index(stop) + 1
    own, ignoring = answers(
        engine,
        [
            request("own", prompt(6), temperature=0, stop_token_ids=(stop,)),
            request("both", prompt(6), temperature=0, stop_token_ids=(stop,), ignore_eos=True),
        ],
    )
    assert own.token_ids == ignoring.token_ids == free[:cut]
    assert own.finish_reason == ignoring.finish_reason == "stop"
    assert len(own.log_probs) == cut


def test_the_models_own_stop_tokens_end_a_turn_unless_they_are_set_aside(engine, monkeypatch):
    free = answers(engine, [request("free", prompt(7), temperature=0, ignore_eos=True)])[0].token_ids
    monkeypatch.setattr(engine, "stop_token_ids", frozenset(free[2:3]))
    stopping, going = answers(
        engine,
        [request("stops", prompt(7), temperature=0), request("goes", prompt(7), temperature=0, ignore_eos=True)],
    )
    assert stopping.token_ids == free[: free.index(free[2]) + 1]
    assert stopping.finish_reason == "stop"
    assert (going.token_ids, going.finish_reason) == (free, "length")


def test_what_cannot_be_served_is_refused_at_once(engine):
    for wrong, says in (
        (request("long", prompt(40), max_tokens=80), r"'long'.*exceed max_len=96.*max_model_len"),
        (request("empty", ()), "'empty' has an empty prompt"),
        (request("none", prompt(3), max_tokens=0), "'none': max_tokens=0"),
    ):
        with pytest.raises(EngineError, match=says):
            engine.submit(wrong)
    with pytest.raises(EngineError, match="'a' is pending"):
        engine.submit_all([request("a", prompt(3)), request("a", prompt(4))])
    assert engine.pending == 0


def test_abort_gives_what_is_there(engine):
    asked = [request(f"r{i}", prompt(3, seed=i), max_tokens=90, ignore_eos=True) for i in range(16)]
    futures = engine.submit_all(asked)
    asyncio.run(engine.abort(["r3", "r4", "unknown"]))
    found = [future.result(60) for future in futures]
    for i, one in enumerate(found):
        wanted = ("abort",) if i in (3, 4) else ("length",)
        assert one.finish_reason in wanted
        assert len(one.token_ids) == len(one.log_probs)
        assert (len(one.token_ids) < 90) == (i in (3, 4))
    assert engine.pending == 0


def test_cancelling_an_await_aborts_the_request(engine):
    async def impatient():
        slow = request("slow", prompt(4), max_tokens=90, ignore_eos=True)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(engine.generate(slow), 0.01)
        return await engine.generate(request("next", prompt(4), max_tokens=2, ignore_eos=True))

    assert len(asyncio.run(impatient()).token_ids) == 2


def test_sleep_waits_for_no_one_and_asks_for_wake(engine):
    before = answers(engine, [request(0, prompt(4), seed=5)])[0]
    future = engine.submit(request("pending", prompt(4), max_tokens=90, ignore_eos=True))
    with pytest.raises(EngineError, match=r"sleep: 1 requests are pending \(pending"):
        asyncio.run(engine.sleep())
    asyncio.run(engine.abort(["pending"]))
    future.result(60)
    asyncio.run(engine.sleep())
    with pytest.raises(EngineError, match=r"'early': the engine sleeps; call wake\('cache'\)"):
        engine.submit(request("early", prompt(4)))
    with pytest.raises(EngineError, match=r"wake\('all'\)"):
        asyncio.run(engine.wake("all"))
    asyncio.run(engine.wake("weights"))
    asyncio.run(engine.wake("cache"))
    assert answers(engine, [request(0, prompt(4), seed=5)])[0] == before


def test_both_engines_sample_the_same_tokens_from_the_same_seeds(native, vllm):
    """But for a random number that lies within rounding of a step of the distribution."""
    asked = [
        request(
            i,
            prompt(3 + i % 7, seed=i),
            seed=i,
            max_tokens=20,
            temperature=(1.0, 0.6)[i % 2],
            top_p=(1, 0.9)[i % 3 == 0],
        )
        for i in range(48)
    ]
    same = [a.token_ids == b.token_ids for a, b in zip(answers(native, asked), answers(vllm, asked), strict=True)]
    assert sum(same) >= 46
