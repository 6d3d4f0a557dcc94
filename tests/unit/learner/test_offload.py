"""Masters and moments in CPU memory, a part at a time on the device: the same numbers, in the same objects."""

import pytest
import torch
from torch import nn

from laurel.config.tree import Optim
from laurel.learner import offload
from laurel.learner.dist import ONE_RANK, Ranks
from laurel.learner.offload import Offloaded
from laurel.learner.optim import Optimizer
from laurel.types import LaurelError

CPU = torch.device("cpu")
ELSEWHERE = Ranks(
    device=torch.device("meta")
)  # ranks that do not compute on a CPU, whose parameters are here all the same


def shapes(*sizes):
    return {f"p{i}": [torch.Size(size)] * 2 for i, size in enumerate(sizes)}


def optimizer(*, moved):
    torch.manual_seed(0)
    parameters = [
        nn.Parameter(torch.randn(5, 7).bfloat16()),
        nn.Parameter(torch.randn(9)),
        nn.Parameter(torch.randn(3, 3).bfloat16()),
    ]
    named = {f"p{i}": parameter for i, parameter in enumerate(parameters)}
    ranks = ELSEWHERE if moved else ONE_RANK
    return Optimizer(
        named.items(), Optim(lr=0.1, clip_grad=1.0), total_updates=9, ranks=ranks, offload=moved
    ), parameters


def update(made, parameters, seed):
    noise = torch.Generator().manual_seed(seed)
    sum((one.float() * torch.randn(one.shape, generator=noise)).sum() for one in parameters).backward()
    return made.step()


@pytest.mark.parametrize("part", [1, 500, 1 << 30])  # bytes
def test_updates_are_the_same_bit_for_bit(part, monkeypatch):
    monkeypatch.setattr(offload, "PART", part)
    (here, own), (away, others) = optimizer(moved=False), optimizer(moved=True)
    for seed in range(3):
        assert update(here, own, seed) == update(away, others, seed)
    assert here.counts() == away.counts()
    for name, tensor in here.tensors().items():
        assert torch.equal(tensor, away.tensors()[name]), name
    for one, other in zip(own, others, strict=True):
        assert torch.equal(one, other)
        assert other.grad is None


def test_a_checkpoint_fills_what_lies_in_cpu_memory():
    (away, others), (here, own) = optimizer(moved=True), optimizer(moved=False)
    update(here, own, 0)
    for name, tensor in away.tensors().items():
        tensor.copy_(here.tensors()[name])
    away.loaded(here.counts())
    assert update(here, own, 1) == update(away, others, 1)
    assert all(torch.equal(one, other) for one, other in zip(own, others, strict=True))


def test_a_float32_part_is_its_own_master_and_only_its_moments_move():
    made, _ = optimizer(moved=True)
    assert {name: len(tensors) for name, tensors in made.offloaded.tensors.items()} == {"p0": 3, "p1": 2, "p2": 3}
    assert made.masters["p1"].data_ptr() == made.parameters["p1"].data_ptr()


def test_parts_hold_whole_parameters(monkeypatch):
    monkeypatch.setattr(offload, "PART", 100)
    made = Offloaded(shapes((5,), (6,), (40,), (1,)), CPU)  # 40, 48, 320 and 8 bytes
    assert [tuple(names) for names in made.parts()] == [("p0", "p1"), ("p2",), ("p3",)]


def test_tensors_stay_the_same_objects_and_keep_what_a_step_wrote(monkeypatch):
    monkeypatch.setattr(offload, "PART", 1)
    made = Offloaded(shapes((2, 3), (4,)), CPU)
    first, second = made.tensors["p0"]
    resting = first.data_ptr()
    for names in made.parts():
        if "p0" in names:
            assert first.data_ptr() != resting
            assert first.shape == (2, 3)
            first.fill_(1.0)
            second.fill_(2.0)
    assert first.data_ptr() == resting
    assert made.tensors["p0"][0] is first
    assert (first.sum(), second.sum(), made.tensors["p1"][0].sum()) == (6, 12, 0)


def test_too_little_cpu_memory_is_said_before_it_is_taken(monkeypatch):
    monkeypatch.setattr(offload, "available_memory", lambda: 1000)
    Offloaded(shapes((112,)), CPU)
    with pytest.raises(LaurelError, match=r"fsdp_config\.optimizer_offload=False"):
        Offloaded(shapes((113,)), CPU)
