"""Effects of actor_rollout_ref.rollout.*: on requests, on the engine's arguments, on what travels for log-probs."""

import pytest
import torch
from unit.effects.cases import REF, ROLLOUT, batch_of, run_of
from unit.effects.registry import effect

from laurel.learner.learner import PolicyLearner
from laurel.models.load import load_policy
from laurel.rollout.check import check
from laurel.rollout.engine import EngineError
from laurel.rollout.native.engine import NativeEngine
from laurel.tracking.timer import Timer
from laurel.types import LaurelError, Request, SamplingParams
from laurel.workers import engines
from laurel.workers.clients import ActorClient, RefClient
from laurel.workers.engines import build_engine
from laurel.workers.host import RankHost, Updates

CPU = torch.device("cpu")
VAL = f"{ROLLOUT}.val_kwargs"
KL = "actor_rollout_ref.actor.use_kl_loss=True"


def sampled(config):
    """Requests of a training step with two prompts, and the groups."""
    run, pool = run_of(config)
    groups, _ = run.roles.rollouts.collect(lambda: run.next_prompts()[:2], step=1)
    return pool.requests, groups


def validated(config):
    """Requests of a validation, and the groups."""
    run, pool = run_of(config)
    groups = run.roles.rollouts.answer(run.val_prompts)
    return pool.requests, groups


def of_all(requests, name):
    (value,) = {getattr(request.sampling, name) for request in requests}
    return value


@pytest.fixture
def engine():
    """``build_engine`` on the model of a configuration, closed after the test."""
    made = []

    def make(config):
        module = load_policy(config.actor_rollout_ref.model, dtype=torch.float32)
        made.append(build_engine(config, module, device=CPU, world=1))
        return made[-1]

    yield make
    for one in made:
        one.close()


def request(name="r", length=4, max_tokens=2):
    return Request(name, tuple(range(10, 10 + length)), SamplingParams(max_tokens=max_tokens), seed=0)


@effect(f"{ROLLOUT}.n")
def test_n_is_trajectories_per_prompt(key, settings):
    for n in (1, 3):
        requests, groups = sampled(settings(f"{key}={n}"))
        assert [len(group.trajectories) for group in groups] == [n, n]
        assert len({request.seed for request in requests}) == 2 * n


@effect(f"{ROLLOUT}.temperature")
def test_temperature_is_sampled_at_and_taken_by_the_learner(key, settings):
    shown = {}
    for temperature in (1.0, 0.5):
        config = settings(f"{key}={temperature}")
        assert of_all(sampled(config)[0], "temperature") == temperature
        (shown[temperature],) = PolicyLearner("actor", config).log_probs([batch_of((6, 9))])
    assert not torch.allclose(shown[1.0], shown[0.5], atol=1e-3)


@effect(f"{ROLLOUT}.top_p")
def test_top_p_reaches_the_engine(key, settings):
    assert [of_all(sampled(settings(f"{key}={p}"))[0], "top_p") for p in (1.0, 0.25)] == [1.0, 0.25]


@effect(f"{ROLLOUT}.top_k")
def test_top_k_reaches_the_engine(key, settings):
    assert [of_all(sampled(settings(f"{key}={k}"))[0], "top_k") for k in (-1, 7)] == [-1, 7]


@effect(f"{ROLLOUT}.top_k", f"{ROLLOUT}.top_p", f"{ROLLOUT}.temperature")
def test_training_settings_leave_validation_alone(key, settings):
    plain, changed = (
        validated(settings(*given))[0] for given in ((), (f"{key}=1" if "top_k" in key else f"{key}=0.5",))
    )
    assert [request.sampling for request in plain] == [request.sampling for request in changed]


@effect(f"{ROLLOUT}.ignore_eos")
def test_ignore_eos_samples_up_to_the_limit(key, settings, engine):
    lengths = {}
    for value in (False, True):
        config = settings(f"{key}={value}", f"{ROLLOUT}.n=1")
        (one, *_), _ = sampled(config)
        native = engine(config)
        native.stop_token_ids = frozenset(range(104))  # whatever is sampled would end the turn
        (lengths[value],) = [len(future.result(20).token_ids) for future in native.submit_all([one])]
    assert lengths == {False: 1, True: 8}


@effect(f"{ROLLOUT}.name")
def test_name_chooses_the_engine(key, settings, engine):
    assert type(engine(settings(f"{key}=native"))) is NativeEngine
    assert not check(settings())
    other = settings(f"{key}=sglang")
    with pytest.raises(LaurelError, match=r"rollout.name=sglang"):
        engine(other)
    (problem,) = [problem for problem in check(other) if problem.field == key]
    assert "use actor_rollout_ref.rollout.name=native" in problem.cure


@effect(f"{ROLLOUT}.tensor_model_parallel_size")
def test_the_native_engine_refuses_tensor_parallelism(key, settings):
    assert not check(settings(f"{key}=1"))
    (problem,) = check(settings(f"{key}=2"))
    assert (problem.field, problem.value) == (key, 2)


@effect(f"{ROLLOUT}.engine_kwargs")
def test_engine_kwargs_are_for_the_engine_that_they_name(key, settings):
    assert not check(settings())
    (refused,) = check(settings(f"{key}.native.speed=2"))
    assert (refused.field, refused.value) == (f"{key}.native", {"speed": 2})
    (unknown,) = check(settings(f"{key}.vlm.swap_space=4"))
    assert unknown.field == f"{key}.vlm"
    other = settings.loaded(f"{key}.vllm.swap_space=4")
    assert not check(other.config)
    assert any(note.startswith(f"{key} has no effect") for note in other.notes)


@effect(f"{ROLLOUT}.gpu_memory_utilization")
def test_gpu_memory_utilization_bounds_the_cache(key, settings, monkeypatch):
    made = []
    monkeypatch.setattr(engines, "NativeEngine", lambda module, **given: made.append(given))
    module = load_policy(settings().actor_rollout_ref.model, dtype=torch.float32)
    weights = 4 * sum(parameter.numel() for parameter in module.parameters())
    free = 40 * weights
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free, free))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 0)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: -(1 << 40))  # what is loaded bounds nothing here
    # A token takes 2 (keys, values) * 2 layers * 2 KV heads * 8 * 4 bytes; a slot 3 rows of logits and 8 bytes a token
    for share in (0.25, 0.5):
        config = settings(f"{key}={share}", "data.train_batch_size=5000", f"{ROLLOUT}.max_num_batched_tokens=1")
        build_engine(config, module, device=torch.device("cuda"), world=1)
    slot = 4 * 3 * module.config.vocab_size + 8 * 24
    quarter, half = (one["cache_tokens"] * 256 + one["max_slots"] * slot for one in made)
    assert quarter == pytest.approx(9 * weights, rel=0.05)
    assert half == pytest.approx(19 * weights, rel=0.05)


@effect(f"{ROLLOUT}.max_num_seqs")
def test_max_num_seqs_is_the_number_of_slots(key, settings, engine):
    derived, two = engine(settings()), engine(settings(f"{key}=2"))
    assert (derived.max_slots, two.max_slots) == (64, 2)
    assert two._batch.cache.data.shape[1] == 2


@effect(f"{ROLLOUT}.max_num_batched_tokens")
def test_max_num_batched_tokens_cuts_a_prefill(key, settings, engine):
    forwards = {}
    for budget in (8192, 4):
        native = engine(settings(f"{key}={budget}"))
        native.submit(request(length=10, max_tokens=1)).result(20)
        forwards[budget] = native.counters.forwards
    assert forwards == {8192: 1, 4: 3}


@effect(f"{ROLLOUT}.max_model_len")
def test_max_model_len_bounds_prompt_and_response(key, settings, engine):
    derived, longer = engine(settings()), engine(settings(f"{key}=40"))
    assert (derived.max_len, longer.max_len) == (24, 40)
    with pytest.raises(EngineError, match="exceed max_len=24"):
        derived.submit(request(length=30, max_tokens=1))
    assert len(longer.submit(request(length=30, max_tokens=1)).result(20).token_ids) == 1
    (problem,) = check(settings(f"{key}=20"))
    assert problem.field == key


@effect(f"{ROLLOUT}.free_cache_engine")
def test_free_cache_engine_gives_the_cache_back_in_sleep(key, settings):
    held = {}
    for value in (True, False):
        host = RankHost(settings(f"{key}={value}", "algorithm.adv_estimator=grpo"), rank=0, world=1, device="cpu")
        host.build("", Updates(1, 1))
        try:
            host.wake(0)
            host.engine.submit(request()).result(20)
            host.sleep()
            held[value] = host.engine._batch is not None
            if held[value]:
                host.engine.submit(request()).result(20)
            else:
                with pytest.raises(EngineError, match="the engine sleeps"):
                    host.engine.submit(request())
        finally:
            host.close()
    assert held == {True: False, False: True}


# --- validation -----------------------------------------------------------------------------------------------------


@effect(f"{VAL}.n")
def test_val_n_is_samples_per_validation_prompt(key, settings):
    for n in (1, 2):
        _, groups = validated(settings(f"{key}={n}"))
        assert [len(group.trajectories) for group in groups] == [n] * 3


@effect(f"{VAL}.do_sample")
def test_validation_is_greedy_unless_it_samples(key, settings):
    assert [of_all(validated(settings(f"{key}={v}"))[0], "temperature") for v in (False, True)] == [0.0, 1.0]


@effect(f"{VAL}.temperature", f"{VAL}.top_p", f"{VAL}.top_k")
def test_validation_samples_with_its_own_settings(key, settings):
    name = key.rpartition(".")[2]
    values = (1, 5) if name == "top_k" else (1.0, 0.5)
    found = [of_all(validated(settings(f"{VAL}.do_sample=True", f"{key}={value}"))[0], name) for value in values]
    assert found == list(values)
    assert of_all(sampled(settings(f"{VAL}.do_sample=True", f"{key}={values[1]}"))[0], name) != values[1]


# --- forwards for old and reference log-probabilities ---------------------------------------------------------------


def sent(key, config, ranks):
    """Micro-batches that go to the rank for a batch of rows of 4, 6, 3 and 5 tokens."""
    if key.startswith(REF):
        RefClient(ranks, config, timer=Timer()).log_probs(batch_of((4, 6, 3, 5)))
    else:
        ActorClient(ranks, config, timer=Timer(), step=lambda: 1).log_probs(batch_of((4, 6, 3, 5)))
    method, (micro_batches,) = ranks.sent[-1]
    assert method == ("ref_log_probs" if key.startswith(REF) else "log_probs")
    return micro_batches


def each(name):
    return effect(f"{ROLLOUT}.{name}", f"{REF}.{name}")


@each("log_prob_micro_batch_size_per_gpu")
def test_log_prob_micro_batch_size_is_rows_per_forward(key, settings, ranks):
    for given, rows in (((), [4]), ((f"{key}=1",), [1] * 4), ((f"{key}=3",), [3, 1])):
        assert [micro.row_count for micro in sent(key, settings(KL, *given), ranks)] == rows


@each("log_prob_use_dynamic_bsz")
def test_log_prob_dynamic_bsz_packs_by_tokens_though_a_size_is_given(key, settings, ranks):
    size = f"{key.rpartition('.')[0]}.log_prob_micro_batch_size_per_gpu=1"
    for value, rows in ((False, [1] * 4), (True, [4])):
        assert [micro.row_count for micro in sent(key, settings(KL, size, f"{key}={value}"), ranks)] == rows


@each("log_prob_max_token_len_per_gpu")
def test_log_prob_token_budget_bounds_a_forward(key, settings, ranks):
    for budget, tokens in ((18, [18]), (9, [9, 9]), (1, [6, 5, 4, 3])):
        assert [micro.token_count for micro in sent(key, settings(KL, f"{key}={budget}"), ranks)] == tokens
