"""Effects of optim.* and fsdp_config.* of actor, reference and critic: on parameters, moments and shards."""

from types import SimpleNamespace

import pytest
import torch
from torch.distributed.fsdp import CPUOffloadPolicy, OffloadPolicy
from unit.effects.cases import ACTOR, CRITIC, REF, batch_of, noise
from unit.effects.registry import effect

from laurel.batch.pack import rank_shares
from laurel.learner import parallelize
from laurel.learner.dist import ONE_RANK, Ranks
from laurel.learner.learner import PolicyLearner, ValueLearner

LR = 1e-2
ELSEWHERE = Ranks(0, 4, torch.device("meta"))  # any device but the CPU
LENGTHS = (5, 7)


def each(name):
    return effect(f"{ACTOR}.optim.{name}", f"{CRITIC}.optim.{name}")


def learner_of(key, config, *, ranks=ONE_RANK, total_updates=10):
    if key.startswith(CRITIC):
        return ValueLearner(config, ranks=ranks, total_updates=total_updates)
    role = "ref" if key.startswith(REF) else "actor"
    return PolicyLearner(role, config, ranks=ranks, total_updates=total_updates)


class Trained:
    """A learner of the role of ``key``, without weight decay unless that is given."""

    def __init__(self, key, settings, *overrides, total_updates=10):
        optim = key.rpartition(".")[0]
        given = [word for word in (f"{optim}.lr={LR}", f"{optim}.weight_decay=0") if not word.startswith(key)]
        self.learner = learner_of(key, settings(*given, *overrides), total_updates=total_updates)
        self.role = self.learner.role

    def update(self, seed=0):
        """One update on random data; the largest change of a parameter, and the metrics."""
        columns = {name: noise(sum(LENGTHS), seed) for name in ("advantages", "values", "returns")}
        before = self.parameters()
        metrics = self.learner.update(rank_shares(batch_of(LENGTHS, **columns), 1, 100))
        return float((self.parameters() - before).abs().max()), metrics

    def parameters(self):
        return torch.cat([p.detach().flatten().clone() for p in self.learner.module.parameters()])


@each("lr")
def test_lr_is_the_size_of_a_step(key, settings):
    for rate in (1e-3, 1e-2):  # AdamW's first step is lr wherever the gradient is not tiny
        trained = Trained(key, settings, f"{key}={rate}")
        step, metrics = trained.update()
        assert step == pytest.approx(rate, rel=1e-3)
        assert metrics[f"{trained.role}/lr"] == rate


@each("lr_warmup_steps")
def test_warmup_steps_raise_the_rate_slowly(key, settings):
    for steps, rate in ((0, LR), (2, LR / 2), (4, LR / 4)):
        assert Trained(key, settings, f"{key}={steps}").update()[0] == pytest.approx(rate, rel=1e-3)


@each("lr_warmup_steps_ratio")
def test_warmup_ratio_counts_all_updates(key, settings):
    for ratio, rate in ((0.0, LR), (0.2, LR / 2), (0.4, LR / 4)):  # of 10 updates
        assert Trained(key, settings, f"{key}={ratio}").update()[0] == pytest.approx(rate, rel=1e-3)


@each("lr_scheduler_type")
def test_cosine_ends_at_zero(key, settings):
    steps = {}
    for kind in ("constant", "cosine"):
        trained = Trained(key, settings, f"{key}={kind}", total_updates=3)
        steps[kind] = [trained.update()[0] for _ in range(3)]
    assert min(steps["constant"]) > 0.9 * LR
    assert steps["cosine"][0] == pytest.approx(LR, rel=1e-3)
    assert steps["cosine"][2] == 0.0


@each("min_lr_ratio")
def test_min_lr_ratio_is_where_cosine_ends(key, settings):
    cosine = f"{key.rpartition('.')[0]}.lr_scheduler_type=cosine"
    for ratio in (0.0, 0.25):
        trained = Trained(key, settings, cosine, f"{key}={ratio}", total_updates=2)
        trained.update()
        step, metrics = trained.update()
        assert metrics[f"{trained.role}/lr"] == pytest.approx(LR * ratio)
        assert (step > 0) is (ratio > 0)


@each("weight_decay")
def test_weight_decay_shrinks_parameters(key, settings):
    plain, decayed = (Trained(key, settings, f"{key}={value}") for value in (0, 0.5))
    start = plain.parameters()
    plain.update()
    decayed.update()
    assert torch.allclose(plain.parameters() - decayed.parameters(), LR * 0.5 * start, atol=1e-6)


@each("betas")
def test_betas_decide_how_gradients_are_remembered(key, settings):
    short, long = (Trained(key, settings, f"{key}={value}") for value in ("[0.0,0.5]", "[0.9,0.999]"))
    for trained in (short, long):
        trained.update(seed=1)
    # The first step does not depend on them, since the moments are corrected for their start at 0
    assert torch.allclose(short.parameters(), long.parameters(), atol=1e-5)
    for trained in (short, long):
        trained.update(seed=2)
    assert float((short.parameters() - long.parameters()).abs().max()) > 1e-3


@each("clip_grad")
def test_clip_grad_scales_the_gradient_down(key, settings):
    for limit in (0.001, 0.01, 1000.0):
        trained = Trained(key, settings, f"{key}={limit}")
        _, metrics = trained.update()
        norm = metrics[f"{trained.role}/grad_norm"]
        moments = [state["exp_avg"].square().sum() for state in trained.learner.optimizer.adam.state.values()]
        taken = float(torch.stack(moments).sum().sqrt()) / 0.1  # the first moment is 0.1 of the first gradient
        assert 0.01 < norm < 1000
        assert taken == pytest.approx(min(limit, norm), rel=1e-3)


# --- shards: what FSDP2 is asked for, on four ranks that are not there ----------------------------------------------


@pytest.fixture
def asked(monkeypatch):
    """Keyword arguments of every fully_shard, and the shape of the mesh."""
    calls, meshes = [], []
    monkeypatch.setattr("laurel.learner.learner.gc", SimpleNamespace(collect=lambda: None))  # slow, for tiny models
    monkeypatch.setattr(parallelize, "fully_shard", lambda module, **given: calls.append((module, given)))
    monkeypatch.setattr(parallelize, "init_device_mesh", lambda kind, shape, **_: meshes.append(shape))
    return SimpleNamespace(calls=calls, meshes=meshes)


def each_sharded(name):
    return effect(*(f"{role}.fsdp_config.{name}" for role in (ACTOR, REF, CRITIC)))


def sharded(key, settings, value, asked):
    asked.calls.clear()
    asked.meshes.clear()
    learner_of(key, settings(f"{key}={value}", "trainer.n_gpus_per_node=4"), ranks=Ranks(0, 4))
    assert len(asked.calls) >= 3  # two layers and the root
    return asked


@each_sharded("param_offload")
def test_param_offload_keeps_shards_in_cpu_memory(key, settings, asked):
    for value, policy in ((False, OffloadPolicy), (True, CPUOffloadPolicy)):
        calls = sharded(key, settings, value, asked).calls
        assert {type(given["offload_policy"]) for _, given in calls} == {policy}


@each_sharded("fsdp_size")
def test_fsdp_size_is_how_many_ranks_share_a_copy(key, settings, asked):
    shapes = {size: sharded(key, settings, size, asked).meshes[0] for size in (-1, 2, 4)}
    assert shapes == {-1: (4,), 2: (2, 2), 4: (4,)}


@each_sharded("reshard_after_forward")
def test_reshard_after_forward_frees_layers(key, settings, asked):
    for value in (True, False):
        calls = sharded(key, settings, value, asked).calls
        layers = [given["reshard_after_forward"] for module, given in calls if "Layer" in type(module).__name__]
        assert layers == [value, value]


@effect(f"{ACTOR}.fsdp_config.optimizer_offload", f"{CRITIC}.fsdp_config.optimizer_offload")
def test_optimizer_offload_keeps_moments_in_cpu_memory(key, settings, asked):
    shards = "trainer.n_gpus_per_node=4"  # whose parameters stay on the CPU here, and ranks compute elsewhere
    for value in (False, True):
        optimizer = learner_of(key, settings(f"{key}={value}", shards), ranks=ELSEWHERE).optimizer
        assert (optimizer.offloaded is not None) is value
        if value:
            held = {id(tensor) for tensors in optimizer.offloaded.tensors.values() for tensor in tensors}
            assert {id(state["exp_avg"]) for state in optimizer.adam.state.values()} < held


@effect(f"{ACTOR}.fsdp_config.optimizer_offload", f"{CRITIC}.fsdp_config.optimizer_offload")
def test_an_update_works_with_either_offload_or_both(key, settings, asked):
    for param in (False, True):  # parameters that lie in CPU memory themselves are stepped on there
        for value in (False, True):
            words = (f"{key.rpartition('.')[0]}.param_offload={param}", f"{key}={value}", "trainer.n_gpus_per_node=4")
            optimizer = learner_of(key, settings(*words), ranks=ELSEWHERE).optimizer
            assert (optimizer.offloaded is not None) is (value and not param)
            before = next(iter(optimizer.masters.values())).clone()
            gradients = {name: torch.ones_like(master) for name, master in optimizer.masters.items()}
            optimizer._apply(gradients, norm=0.5, rate=LR)
            change = before - next(iter(optimizer.masters.values()))
            assert torch.allclose(change, torch.full_like(change, LR), rtol=0.05)


@effect(f"{REF}.fsdp_config.optimizer_offload")
def test_the_reference_says_that_it_has_no_optimizer(key, settings):
    kl = f"{ACTOR}.use_kl_loss=True"
    note = f"{key} has no effect: the reference policy has no optimizer"
    assert note not in settings.loaded(kl).notes
    assert note in settings.loaded(kl, f"{key}=True").notes
    assert PolicyLearner("ref", settings(kl, f"{key}=True")).optimizer is None
