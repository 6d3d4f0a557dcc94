"""How one GPU's rank trains: bfloat16 storage that an engine shares, float32 masters. Here on a CPU, tiny."""

import pytest
import torch
from unit.learner.learner_cases import BUDGET, gradients, make_batch, make_config, make_learners

from laurel.batch.pack import rank_shares
from laurel.learner import learner as room
from laurel.learner.learner import PolicyLearner
from laurel.learner.optim import Step


@pytest.fixture(autouse=True)
def half(monkeypatch):
    monkeypatch.setattr(room, "compute_dtype", lambda device: torch.bfloat16)


def share(seed=0):
    return rank_shares(make_batch(seed), 1, BUDGET)[0]


def test_an_update_moves_masters_and_the_same_storage(model):
    actor, critic = make_learners(model)
    assert {p.dtype for p in actor.module.parameters()} == {torch.bfloat16}
    assert critic.module.value_head.weight.dtype == torch.float32
    places = [p.data_ptr() for p in actor.module.parameters()]
    before = {name: master.clone() for name, master in actor.optimizer.masters.items()}
    for learner in (actor, critic):
        assert learner.update([share(), share(1)])[f"{learner.role}/skipped_updates"] == 0.0
        for name, parameter in learner.module.named_parameters():
            assert torch.equal(parameter, learner.optimizer.masters[name].to(parameter.dtype)), name
    assert [p.data_ptr() for p in actor.module.parameters()] == places
    moved = [float((actor.optimizer.masters[name] - old).abs().max()) for name, old in before.items()]
    assert min(moved) > 5e-4  # lr 1e-3, two updates


def test_gradients_are_near_those_of_float32(model, monkeypatch):
    actor = PolicyLearner("actor", make_config(model))
    found = {}

    def catch():
        found.update({name: value.clone() for name, value in actor.optimizer.gradients.items()})
        actor.optimizer.forget()
        return Step(0.0, 0.0, False)

    monkeypatch.setattr(actor.optimizer, "step", catch)
    actor.update([share()])
    monkeypatch.setattr(room, "compute_dtype", lambda device: torch.float32)
    expected = gradients(PolicyLearner("actor", make_config(model)), share())
    flat = [torch.cat([grads[name].flatten() for name in sorted(expected)]) for grads in (found, expected)]
    assert flat[0].dtype == torch.float32
    assert float(torch.cosine_similarity(*flat, dim=0)) > 0.999


def test_a_checkpoint_keeps_the_masters(model, tmp_path):
    """Bits that bfloat16 would lose come back, and a float32 learner reads them too."""
    actor = PolicyLearner("actor", make_config(model))
    actor.update([share()])
    actor.save(tmp_path / "actor")
    again = PolicyLearner("actor", make_config(model))
    again.load(tmp_path / "actor")
    room.compute_dtype = lambda device: torch.float32  # undone by the fixture
    whole = PolicyLearner("actor", make_config(model))
    whole.load(tmp_path / "actor")
    lossy = 0
    for name, master in actor.optimizer.masters.items():
        assert torch.equal(again.optimizer.masters[name], master), name
        assert torch.equal(whole.module.get_parameter(name), master), name
        lossy += int((master != master.bfloat16().float()).sum())
    assert lossy > 1000
