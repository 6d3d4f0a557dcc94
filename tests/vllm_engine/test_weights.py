"""Weights that provably arrive in vLLM, and what is said when they do not."""

import asyncio

import pytest
import torch
from transformers import AutoModelForCausalLM

from laurel.models.tiny import write_tiny_model
from laurel.rollout.engine import EngineError
from laurel.types import LaurelError
from laurel.weights.buckets import buckets, named_weights
from laurel.weights.fingerprint import checksums
from laurel.weights.ways import Buckets
from vllm_engine.asked import answers, full_log_probs, prompt, request

CPU = torch.device("cpu")


def publish(engine, module, version, **more):
    asyncio.run(Buckets(module, dtype=torch.float32, device="cpu", **more).publish(engine, version))


def changed(module, seed):
    """A copy whose every tensor is another."""
    from copy import deepcopy

    copy = deepcopy(module)
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in copy.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    return copy


@pytest.fixture
def engine(vllm, module):
    """The shared engine, given its weights back in the end."""
    yield vllm
    publish(vllm, module, 0)


def test_new_weights_are_what_is_sampled_from(engine, module):
    """In buckets so small that a layer comes in several, and with a prompt whose blocks the engine has kept."""
    ids = prompt(30)
    before = answers(engine, [request("before", ids, temperature=0, ignore_eos=True)])[0]
    other = changed(module, 1)
    publish(engine, other, 7, bucket_bytes=20_000)
    after = answers(engine, [request("after", ids, temperature=0, ignore_eos=True)])[0]
    assert (before.policy_version, after.policy_version) == (0, 7)
    exact = full_log_probs(other, ids, after.token_ids)
    assert after.log_probs == pytest.approx(exact.tolist(), abs=1e-4)
    assert max(abs(a - b) for a, b in zip(before.log_probs, after.log_probs, strict=True)) > 1e-2


def test_the_fingerprint_is_of_vllms_own_tensors(engine, module):
    """One element of one tensor is altered in the process: q within the fused projection."""
    held = asyncio.run(engine.load_weights(3, buckets(module, dtype=torch.float32, device=CPU)))
    assert held.tensors == checksums(named_weights(module))
    other = changed(module, 2)
    found = asyncio.run(engine.load_weights(4, buckets(other, dtype=torch.float32, device=CPU)))
    assert all(found.tensors[name] != value for name, value in held.tensors.items())


@pytest.mark.parametrize(("architecture", "tied"), [("llama", False), ("qwen2", True)])
def test_models_with_biases_and_heads_of_their_own(architecture, tied, made, tmp_path_factory):
    shape = {"architecture": architecture, "tied": tied, "hidden": 64, "heads": 2, "kv_heads": 1}
    folder = write_tiny_model(tmp_path_factory.mktemp("other") / "model", **shape)
    learner = changed(AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32), 3)
    one = made("vllm", learner, model=folder)
    try:
        publish(one, learner, 0)
        ids = prompt(5)
        (answer,) = answers(one, [request("a", ids, ignore_eos=True)])
        exact = full_log_probs(learner, ids, answer.token_ids)
        assert answer.log_probs == pytest.approx(exact.tolist(), abs=1e-4)
    finally:
        one.close()


class Faulty:
    """A learner's weights on their way, with a fault."""

    def __init__(self, module, fault):
        self.module, self.fault = module, fault

    def __iter__(self):
        for bucket in buckets(self.module, dtype=torch.float32, device=CPU, bucket_bytes=20_000):
            yield self.fault(dict(bucket))


NAME = "model.layers.1.mlp.up_proj.weight"


def without(bucket):
    bucket.pop(NAME, None)
    return bucket


def wider(bucket):
    if NAME in bucket:
        bucket[NAME] = torch.zeros(bucket[NAME].shape[0] + 1, bucket[NAME].shape[1])
    return bucket


def renamed(bucket):
    return {name.replace("up_proj", "upper"): tensor for name, tensor in bucket.items()}


def altered(bucket):
    if NAME in bucket:
        bucket[NAME] = bucket[NAME].clone()
        bucket[NAME][0, 0] += 1
    return bucket


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        (without, rf"1 tensors never came: {NAME}; send every parameter"),
        (wider, rf"'{NAME}' comes as \(193, 64\), not \(192, 64\); was the model changed\?"),
        (renamed, r"no tensor 'model\.layers\.0\.mlp\.upper\.weight'"),
    ],
)
def test_a_fault_on_the_way_fails_that_publish_and_the_next_one_goes_through(engine, module, fault, says):
    with pytest.raises(EngineError, match=says):
        asyncio.run(engine.load_weights(5, Faulty(module, fault)))
    with pytest.raises(EngineError, match="the engine has no weights"):
        engine.submit(request("early", prompt(3)))
    publish(engine, module, 6)
    assert answers(engine, [request("a", prompt(3), max_tokens=1)])[0].policy_version == 6


def test_a_tensor_altered_on_the_way_is_named(engine, module, monkeypatch):
    pack = engine._sender.pack
    monkeypatch.setattr(engine._sender, "pack", lambda bucket: pack(altered(dict(bucket))))
    with pytest.raises(LaurelError, match=rf"version 5 did not arrive whole.*stale or altered {NAME}\."):
        publish(engine, module, 5)


def test_a_tensor_that_stays_as_it_was_is_named(engine, module, monkeypatch):
    """The publish brings it, and on the way to vLLM it is lost."""
    pack = engine._sender.pack
    monkeypatch.setattr(engine._sender, "pack", lambda bucket: pack(without(dict(bucket))))
    with pytest.raises(LaurelError, match=rf"version 5 did not arrive whole.*stale or altered {NAME}\."):
        publish(engine, changed(module, 4), 5)


def test_nothing_is_loaded_under_requests_or_from_no_buckets(engine, module):
    future = engine.submit(request("pending", prompt(4), max_tokens=90, ignore_eos=True))
    with pytest.raises(EngineError, match=r"load_weights: 1 requests are pending \(pending"):
        publish(engine, module, 1)
    assert future.result(60).policy_version == 0
    with pytest.raises(EngineError, match="send it buckets"):
        asyncio.run(engine.load_weights(1, None))
