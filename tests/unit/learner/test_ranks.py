"""Two and four ranks give what one gives: gradients, updates, metrics, checkpoints."""

import ast

import pytest
import torch
from safetensors.torch import load_file
from unit.learner.learner_cases import ONE_RANK, make_learners, run_case

from laurel.learner.shards import Reader, read_state

RUNS = ["world2--1", "world4--1", "world4-2"]


@pytest.fixture(scope="module")
def alone(model):
    torch.set_num_threads(1)
    return run_case(model, ONE_RANK)


@pytest.mark.parametrize("run", RUNS)
def test_gradients_are_those_of_one_rank(many_ranks, alone, run):
    """Rows of weight 0 fill up ranks, and one row of the batch itself has weight 0."""
    found = load_file(many_ranks / f"{run}.safetensors")
    expected = {key: value for key, value in alone[0].items() if "_grad/" in key}
    assert len(expected) == 42
    for key, value in expected.items():
        torch.testing.assert_close(found[key], value, atol=1e-5, rtol=0, msg=lambda m, key=key: f"{key}: {m}")
    assert max(float(value.abs().max()) for value in expected.values()) > 0.05


@pytest.mark.parametrize("run", RUNS)
def test_two_updates_are_those_of_one_rank(many_ranks, alone, model, run):
    found = load_file(many_ranks / f"{run}.safetensors")
    start = dict(make_learners(model)[0].module.named_parameters())
    for key, value in alone[0].items():
        if key.startswith(("policy/", "value/")):
            torch.testing.assert_close(found[key], value, atol=5e-5, rtol=0, msg=lambda m, key=key: f"{key}: {m}")
    moved = max(float((found[f"policy/{name}"] - value).detach().abs().max()) for name, value in start.items())
    # AdamW steps of about lr / 2 and lr = 1e-3, and weight decay 0.1 on norm weights of 1
    assert moved == pytest.approx(1.65e-3, rel=0.02)


@pytest.mark.parametrize("run", RUNS)
def test_metrics_are_the_same_on_every_rank_and_those_of_one(many_ranks, alone, run):
    ranks = [ast.literal_eval(path.read_text()) for path in sorted(many_ranks.glob(f"{run}-rank*.txt"))]
    assert len(ranks) == int(run[5])
    assert all(metrics == ranks[0] for metrics in ranks[1:])
    assert ranks[0] == pytest.approx(alone[1], rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("role", ["actor", "critic"])
@pytest.mark.parametrize(
    ("source", "copy", "shards"),
    [("from1", "again2--1", 2), ("trained2", "again4--1", 4), ("trained2", "again4-2", 2)],
    ids=["1 to 2", "2 to 4", "2 to 2x2"],
)
def test_a_checkpoint_loads_on_other_ranks_bit_for_bit(many_ranks, role, source, copy, shards):
    """What fewer ranks wrote, more ranks read and wrote again; parameters, moments and counts are the same."""
    before, after = many_ranks / source / role, many_ranks / copy / role
    states = [read_state(folder) for folder in (before, after)]
    assert states[0]["counts"] == states[1]["counts"]
    assert states[1]["shards"] == shards == len(list(after.glob("*.safetensors")))
    with Reader(before, states[0]["shards"]) as a, Reader(after, shards) as b:
        assert a.shapes == b.shapes
        assert {key.split("/")[0] for key in a.shapes} == {"param", "exp_avg", "exp_avg_sq"}
        for key in a.shapes:
            assert torch.equal(a.whole(key), b.whole(key)), key


def test_one_rank_reads_what_two_wrote(many_ranks, model):
    learners = make_learners(model)
    for learner in learners:
        folder = many_ranks / "trained2" / learner.role
        learner.load(folder)
        assert learner.optimizer.counts() == {"updates": 2, "adam_step": 2, "skipped": 0, "skipped_in_a_row": 0}
        with Reader(folder, 2) as reader:
            for key, tensor in learner.optimizer.tensors().items():
                assert torch.equal(tensor, reader.whole(key)), key
            for name, parameter in learner.module.named_parameters():
                assert torch.equal(parameter, reader.whole(f"param/{name}")), name
