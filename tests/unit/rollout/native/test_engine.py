import asyncio
import random

import pytest
import torch
from tiny_models import VOCAB, full_log_probs, prompt, request, tiny

from laurel.models.slots import serving
from laurel.rollout.engine import EngineError
from laurel.rollout.seeds import uniform
from laurel.types import LaurelError
from laurel.weights.fingerprint import tensor_checksum


def answers(engine, requests):
    return [future.result(60) for future in engine.submit_all(requests)]


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_greedy_equals_generate_on_ragged_prompts(engine, family):
    """Seven prompts through three slots, prompts longer than one prefill cut up: token for token, and refilled."""
    module = tiny(family)
    prompts = [prompt(length, seed) for seed, length in enumerate((5, 3, 9, 3, 12, 1, 40))]
    wanted = [
        module.generate(
            torch.tensor([ids]), max_new_tokens=9 + i % 3, do_sample=False, eos_token_id=None, pad_token_id=0
        )[0, len(ids) :].tolist()
        for i, ids in enumerate(prompts)
    ]
    one = engine(module, max_slots=3, prefill_tokens=8)
    found = answers(one, [request(i, ids, max_tokens=9 + i % 3, temperature=0) for i, ids in enumerate(prompts)])
    assert [list(answer.token_ids) for answer in found] == wanted
    assert [answer.request_id for answer in found] == [str(i) for i in range(7)]
    assert {answer.finish_reason for answer in found} == {"length"}
    assert one.counters.prefill_tokens == sum(len(ids) for ids in prompts)
    for ids, answer in zip(prompts, found, strict=True):  # at temperature 0: of the logits as they are
        exact = full_log_probs(module, ids, answer.token_ids).gather(1, torch.tensor(answer.token_ids)[:, None])
        assert answer.log_probs == pytest.approx(exact[:, 0].tolist(), abs=1e-4)


@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_log_probs_are_those_of_a_full_forward_at_the_temperature(engine, family):
    module = tiny(family)
    requests = [
        request(i, prompt(3 + i % 5), seed=i, max_tokens=4 + i, temperature=0.7, top_p=0.8 if i % 2 else 1.0)
        for i in range(12)
    ]
    for asked, answer in zip(requests, answers(engine(module), requests), strict=True):
        exact = full_log_probs(module, asked.prompt_ids, answer.token_ids, temperature=0.7)
        exact = exact.gather(1, torch.tensor(answer.token_ids)[:, None])[:, 0]
        assert answer.log_probs == pytest.approx(exact.tolist(), abs=1e-4)
        assert len(answer.token_ids) == asked.sampling.max_tokens


def assert_same_but_for_ties(module, asked, one, other):
    """Equal tokens, except from a place on where the random number lies within 1e-5 of a step of the distribution."""
    for i, (a, b) in enumerate(zip(one.token_ids, other.token_ids, strict=False)):
        if a != b:
            exact = full_log_probs(module, asked.prompt_ids, one.token_ids[: i + 1])[-1].exp().cumsum(-1)
            margin = float((exact - uniform(asked.seed, i)).abs().min())
            assert margin < 1e-5, f"request {asked.id} differs at token {i} with a margin of {margin}"
            return False
    assert one.finish_reason == other.finish_reason
    assert len(one.token_ids) == len(other.token_ids)
    return True


def test_same_seeds_same_samples_at_any_slot_count_and_order(engine):
    module = tiny()
    requests = [
        request(f"{group}/{sample}", prompt(4 + group), seed=100 * group + sample, max_tokens=3 + (5 * sample) % 13)
        for group in range(8)
        for sample in range(6)
    ]
    reference = answers(engine(module, max_slots=1), requests)
    assert len({answer.token_ids for answer in reference}) > 40  # seeds matter
    for slots, budget in ((3, 8192), (64, 8192), (7, 5)):
        shuffled = requests.copy()
        random.Random(slots).shuffle(shuffled)
        found = {a.request_id: a for a in answers(engine(module, max_slots=slots, prefill_tokens=budget), shuffled)}
        same = [
            assert_same_but_for_ties(module, asked, one, found[asked.id])
            for asked, one in zip(requests, reference, strict=True)
        ]
        assert sum(same) >= 46  # ties are rare


def test_samples_follow_the_distribution_of_the_model(engine):
    """The first token is the inverse CDF of the full forward's distribution at the request's own random number."""
    module = tiny()
    requests = [request(i, prompt(5), seed=i, max_tokens=1) for i in range(200)]
    running = full_log_probs(module, prompt(5), [0])[-1].exp().cumsum(-1)
    for asked, answer in zip(requests, answers(engine(module, max_slots=50), requests), strict=True):
        number = uniform(asked.seed, 0)
        if float((running - number).abs().min()) > 1e-5:
            assert answer.token_ids[0] == int((running <= number).sum())


def test_a_group_is_prefilled_once(engine):
    """Eight samples share a prompt of 10, through 3 slots: 10 prompt tokens computed, and occupancy is counted."""
    one = engine(tiny(), max_slots=3)
    found = answers(one, [request(i, prompt(10), seed=i, max_tokens=5) for i in range(8)])
    assert one.counters.prefill_tokens == 10
    assert one.counters.sampled_tokens == 40
    assert one.counters.decode_tokens == 8 * 4  # the first token of each comes from the prompt's own logits
    assert len({answer.token_ids for answer in found}) == 8
    # Admitted three at a time with five tokens each: 3 + 3 + 2, each wave 4 decoding steps after its first token. Over
    # pages a wave is launched some steps further before the host knows that it ended.
    if one.batch_kind == "slots":
        assert one.counters.occupancy == pytest.approx(8 / 9)
    else:
        assert one.counters.occupancy == pytest.approx(32 / (one.counters.decode_forwards * 3))
        assert 12 < one.counters.decode_forwards <= 12 + 3 * 12


def test_requests_that_come_one_by_one_share_their_prefill(engine):
    one = engine(tiny(), max_slots=40)
    futures = [one.submit(request(i, prompt(10), seed=i, max_tokens=2)) for i in range(40)]
    assert len({future.result(60).token_ids for future in futures}) > 10
    assert one.counters.prefill_tokens <= 3 * 10  # once, if no submit takes longer than the engine's patience


def test_stop_tokens_end_a_sequence_and_belong_to_it(engine):
    module = tiny()
    free = answers(engine(module), [request(0, prompt(6), max_tokens=12, temperature=0)])[0].token_ids
    stop = free[4]
    first = free.index(stop)
    one = engine(module, stop_token_ids=[stop])
    cut, ignoring, own, kept_own = answers(
        one,
        [
            request("engine's", prompt(6), max_tokens=12, temperature=0),
            request("ignored", prompt(6), max_tokens=12, temperature=0, ignore_eos=True),
            request("own", prompt(6), max_tokens=12, temperature=0, stop_token_ids=(free[0],)),
            request(
                "own, ignore_eos", prompt(6), max_tokens=12, temperature=0, stop_token_ids=(free[0],), ignore_eos=True
            ),
        ],
    )
    assert (cut.token_ids, cut.finish_reason) == (free[: first + 1], "stop")
    assert (ignoring.token_ids, ignoring.finish_reason) == (free, "length")
    assert (own.token_ids, own.finish_reason) == (free[:1], "stop")
    assert (kept_own.token_ids, kept_own.finish_reason) == (free[:1], "stop")
    assert len(cut.log_probs) == first + 1


def test_limits_are_refused_at_submit_with_a_cure(engine):
    one = engine(tiny(), max_len=16)
    with pytest.raises(
        EngineError, match=r"'long'.*10 prompt tokens plus max_tokens=7 exceed max_len=16.*max_model_len"
    ):
        one.submit(request("long", prompt(10), max_tokens=7))
    with pytest.raises(EngineError, match="'empty' has an empty prompt"):
        one.submit(request("empty", ()))
    with pytest.raises(EngineError, match="'none': max_tokens=0"):
        one.submit(request("none", prompt(3), max_tokens=0))
    assert one.pending == 0
    assert len(answers(one, [request("fits", prompt(10), max_tokens=6)])[0].token_ids) == 6


def test_an_id_is_pending_once(engine):
    one = engine(tiny())
    with pytest.raises(EngineError, match="'a' is pending"):
        one.submit_all([request("a", prompt(3)), request("a", prompt(4))])
    assert one.pending == 0


def test_abort_gives_what_is_there(engine):
    module = tiny()
    one = engine(module, max_slots=1, max_len=4096)
    running = one.submit(request("running", prompt(4), max_tokens=4000))
    waiting = one.submit(request("waiting", prompt(5), max_tokens=4000))
    after = one.submit(request("after", prompt(6), max_tokens=3, temperature=0))
    asyncio.run(one.abort(["running", "waiting", "unknown"]))
    assert running.result(60).finish_reason == "abort"
    assert len(running.result().token_ids) < 4000
    assert (waiting.result(60).token_ids, waiting.result().finish_reason) == ((), "abort")
    found = after.result(60)
    plain = answers(engine(module), [request("plain", prompt(6), max_tokens=3, temperature=0)])[0]
    assert found.token_ids == plain.token_ids


def test_two_engines_cannot_run_on_one_module(engine):
    module = tiny()
    with serving(module), pytest.raises(LaurelError, match="another engine is running on this LlamaForCausalLM"):
        engine(module).submit(request(0, prompt(4))).result(60)
    assert module.config._attn_implementation != "slots"


def test_long_answers_use_packed_weights_and_never_old_ones(engine):
    """From 16 tokens on a CPU lays weights out; an update in place is seen even if nobody says so."""
    module, other = tiny(seed=0), tiny(seed=1)
    one = engine(module)
    asked = request(0, prompt(5), max_tokens=20, temperature=0)
    short = answers(one, [request("short", prompt(5), max_tokens=15, temperature=0)])[0]
    assert not one._linears.ready
    assert answers(one, [asked])[0].token_ids[:15] == short.token_ids
    assert one._linears.ready
    with torch.no_grad():
        for mine, theirs in zip(module.parameters(), other.parameters(), strict=True):
            mine.copy_(theirs)
    assert answers(one, [asked])[0].token_ids == answers(engine(other), [asked])[0].token_ids
    asyncio.run(one.sleep())
    assert not one._linears.ready


def test_cancelling_an_await_aborts_the_request(engine):
    one = engine(tiny(), max_len=4096)

    async def impatient():
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(one.generate(request("slow", prompt(4), max_tokens=4000)), 0.2)
        return await one.generate(request("next", prompt(4), max_tokens=2))

    assert len(asyncio.run(impatient()).token_ids) == 2


def test_sleep_frees_the_cache_and_wake_takes_it_again(engine):
    one = engine(tiny(), max_len=2048)
    before = answers(one, [request(0, prompt(4), seed=5)])[0]
    pending = one.submit(request("pending", prompt(4), max_tokens=2000))
    with pytest.raises(EngineError, match=r"sleep: 1 requests are pending \(pending"):
        asyncio.run(one.sleep())
    asyncio.run(one.abort(["pending"]))
    pending.result(60)
    asyncio.run(one.sleep())
    with pytest.raises(EngineError, match=r"'early': the engine sleeps; call wake\('cache'\)"):
        one.submit(request("early", prompt(4)))
    asyncio.run(one.wake("weights"))
    asyncio.run(one.wake("cache"))
    assert answers(one, [request(0, prompt(4), seed=5)])[0] == before


def test_a_failing_step_fails_everybody_and_the_engine_goes_on(engine, monkeypatch):
    module = tiny()
    one = engine(module, max_slots=2)
    layer = module.model.layers[1]

    def fail(*ignored):
        raise RuntimeError("no memory left")

    broken = layer.register_forward_hook(fail)
    if one.batch_kind == "paged":  # its forward pass is not the module's
        monkeypatch.setattr("laurel.models.decoder.gated", fail)
    futures = one.submit_all([request(i, prompt(4 + i)) for i in range(5)])
    for future in futures:
        with pytest.raises(RuntimeError, match="no memory left"):
            future.result(60)
    broken.remove()
    monkeypatch.undo()
    assert one.pending == 0
    assert len(answers(one, [request("next", prompt(4))])[0].token_ids) == 8


def test_broken_weights_are_told_instead_of_sampled(engine):
    module = tiny()
    with torch.no_grad():
        module.model.norm.weight[3] = float("nan")
    with pytest.raises(EngineError, match="logits of request '0' are not finite"):
        engine(module).submit(request(0, prompt(4))).result(60)


def test_the_module_is_as_the_learner_left_it(engine):
    """Between batches a learner may train: mode, attention and gradients are untouched after the last answer."""
    module = tiny()
    module.train()
    before = module.config._attn_implementation
    one = engine(module)
    for i in range(20):
        answers(one, [request(i, prompt(4), max_tokens=2)])
        assert module.training
        assert module.config._attn_implementation == before
        module(torch.tensor([prompt(4)])).logits.sum().backward()


def test_load_weights_in_place_changes_output_version_and_fingerprint(engine):
    module, other = tiny(seed=0), tiny(seed=1)
    one = engine(module)
    asked = request(0, prompt(5), temperature=0)
    old = answers(one, [asked])[0]
    with torch.no_grad():
        for mine, theirs in zip(module.parameters(), other.parameters(), strict=True):
            mine.copy_(theirs)
    fingerprint = asyncio.run(one.load_weights(7, None))
    new = answers(one, [asked])[0]
    assert (old.policy_version, new.policy_version) == (0, 7)
    assert new.token_ids == answers(engine(other), [asked])[0].token_ids != old.token_ids
    assert fingerprint.version == 7
    assert fingerprint.tensors == {name: tensor_checksum(tensor) for name, tensor in other.named_parameters()}


def test_load_weights_by_buckets(engine):
    module, other = tiny(seed=0), tiny(seed=1)
    one = engine(module)
    named = list(other.named_parameters())
    pointers = [parameter.data_ptr() for parameter in module.parameters()]
    buckets = [dict(named[:3]), dict(named[3:])]
    fingerprint = asyncio.run(one.load_weights(1, iter(buckets)))
    assert fingerprint.tensors == {name: tensor_checksum(tensor) for name, tensor in named}
    assert [parameter.data_ptr() for parameter in module.parameters()] == pointers
    tied = {("lm_head.weight" if name == "model.embed_tokens.weight" else name): tensor for name, tensor in named}
    asyncio.run(one.load_weights(2, [tied]))
    with pytest.raises(EngineError, match=r"no tensor 'model\.extra'"):
        asyncio.run(one.load_weights(3, [{"model.extra": torch.zeros(1)}]))
    with pytest.raises(EngineError, match=r"never came: model\.embed_tokens.weight"):
        asyncio.run(one.load_weights(3, [dict(named[1:])]))
    with pytest.raises(EngineError, match=r"'model.norm.weight' comes as \(3,\), not \(48,\)"):
        asyncio.run(one.load_weights(3, [{"model.norm.weight": torch.zeros(3)}]))
    assert one.policy_version == 2


def test_models_that_it_cannot_serve_are_refused(engine):
    with pytest.raises(LaurelError, match="sliding_window=16, shorter than max_len=32"):
        engine(tiny("qwen2", use_sliding_window=True, sliding_window=16, max_window_layers=0), max_len=32)
    engine(tiny("qwen2", use_sliding_window=True, sliding_window=32, max_window_layers=0), max_len=32)
    module = tiny()
    one = engine(module, paged=False)
    first = module.model.layers[0]
    first.forward = lambda hidden_states, **ignored: hidden_states
    with pytest.raises(EngineError, match="sent 1 of 2 layers through the slot cache"):
        one.submit(request(0, prompt(3))).result(60)


def test_vocabulary_of_the_tiny_model_is_odd():
    """The tests above should meet the padded last block of the sampler."""
    assert VOCAB % 32 != 0
