import asyncio

import pytest
import torch
from torch import nn

from laurel.types import Fingerprint, LaurelError
from laurel.weights.buckets import buckets, named_weights, tied_names
from laurel.weights.fingerprint import fingerprint
from laurel.weights.ways import Buckets, SameMemory, verify


class Tied(nn.Module):
    def __init__(self, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.embed = nn.Embedding(10, 4)
        self.layer = nn.Linear(4, 4)
        self.head = nn.Linear(4, 10, bias=False)
        self.head.weight = self.embed.weight


class HeldCopy:
    """An engine with a full copy, which can lose tensors or keep old ones."""

    def __init__(self, module, drop=(), stale=()):
        self.tensors = {name: p.detach().clone() for name, p in module.named_parameters()}
        self.drop, self.stale = set(drop), set(stale)
        self.sizes = []

    async def load_weights(self, version, buckets):
        for bucket in buckets or ():
            self.sizes.append(len(bucket))
            for name, tensor in bucket.items():
                if name not in self.stale:
                    self.tensors[name] = tensor.clone()
        held = {name: tensor for name, tensor in self.tensors.items() if name not in self.drop}
        return fingerprint(held, version)


class Sharing:
    """An engine that runs a module."""

    def __init__(self, module):
        self.module = module

    async def load_weights(self, version, buckets):
        assert buckets is None
        return fingerprint(self.module.state_dict(), version)  # reports the tied name too


def by_buckets(module, **more):
    return Buckets(module, dtype=torch.float32, device="cpu", **more)


def test_names():
    module = Tied()
    assert list(named_weights(module)) == ["embed.weight", "layer.weight", "layer.bias"]
    assert tied_names(module) == {"head.weight": "embed.weight"}


def test_buckets_hold_whole_tensors_in_the_rollout_dtype():
    module = Tied()
    found = list(buckets(module, dtype=torch.bfloat16, device=torch.device("cpu"), bucket_bytes=40))
    assert [list(bucket) for bucket in found] == [["embed.weight"], ["layer.weight", "layer.bias"]]  # 80, 32 + 8 bytes
    assert torch.equal(found[1]["layer.weight"], module.layer.weight.bfloat16())


def test_new_weights_arrive():
    learner, engine = Tied(1), HeldCopy(Tied(2))
    asyncio.run(by_buckets(learner, bucket_bytes=100).publish(engine, 3))
    assert engine.sizes == [1, 2]  # 160 bytes, 64 + 16
    assert all(torch.equal(engine.tensors[name], p) for name, p in learner.named_parameters())


def test_a_dropped_and_a_stale_tensor_are_caught_by_name():
    learner = Tied(1)
    engine = HeldCopy(Tied(2), drop=["layer.bias"], stale=["layer.weight"])
    with pytest.raises(LaurelError, match=r"version 3 .*: dropped layer.bias; stale or altered layer.weight\."):
        asyncio.run(by_buckets(learner).publish(engine, 3))


def test_an_engine_that_stops_early_is_caught_and_leaves_no_bucket_undrawn():
    class Early(HeldCopy):
        async def load_weights(self, version, buckets):
            self.tensors.update(next(iter(buckets)))
            return fingerprint(self.tensors, version)

    way = by_buckets(Tied(1), bucket_bytes=1)
    with pytest.raises(LaurelError, match=r"stale or altered layer.weight, layer.bias"):
        asyncio.run(way.publish(Early(Tied(2)), 1))


def test_the_same_memory_is_verified_too():
    module = Tied()
    asyncio.run(SameMemory(module).publish(Sharing(module), 1))
    with torch.no_grad():
        other = Tied()
        other.layer.weight[0, 0] += 1
    with pytest.raises(LaurelError, match=r"stale or altered layer.weight\."):
        asyncio.run(SameMemory(module).publish(Sharing(other), 1))


def test_tied_names_may_be_reported_either_way():
    sent = Fingerprint(1, {"embed": 5, "b": 6})
    tied = {"head": "embed"}
    verify(sent, Fingerprint(1, {"embed": 5, "b": 6}), tied)
    verify(sent, Fingerprint(1, {"head": 5, "b": 6}), tied)
    verify(sent, Fingerprint(1, {"embed": 5, "head": 5, "b": 6}), tied)
    with pytest.raises(LaurelError, match="stale or altered head"):
        verify(sent, Fingerprint(1, {"embed": 5, "head": 4, "b": 6}), tied)


def test_other_versions_and_tensors_never_sent():
    with pytest.raises(LaurelError, match="holds weights of version 1, but version 2 was sent"):
        verify(Fingerprint(2, {}), Fingerprint(1, {}))
    with pytest.raises(LaurelError, match="never sent x"):
        verify(Fingerprint(1, {"a": 1}), Fingerprint(1, {"a": 1, "x": 1}))
    many = {f"t{i}": i for i in range(7)}
    with pytest.raises(LaurelError, match="dropped t0, t1, t2, t3 and 3 more"):
        verify(Fingerprint(1, many), Fingerprint(1, {}))
