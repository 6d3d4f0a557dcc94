import pytest
import torch
from unit.learner.learner_cases import make_config
from unit.learner.test_shared_prompts import batch_of

from laurel.learner.dist import ONE_RANK
from laurel.learner.forward import lay_out
from laurel.learner.learner import PolicyLearner
from laurel.learner.utilization import Utilization


def test_flops_of_a_micro_batch_by_hand(model):
    """Prompt tokens computed once, only sampled tokens through the head, a row of weight 0 not at all."""
    actor = PolicyLearner("actor", make_config(model))
    config = actor.module.config
    used = Utilization("actor", actor.module, torch.device("cpu"))
    embedding = config.vocab_size * config.hidden_size
    assert used.head == embedding
    assert used.backbone == sum(p.numel() for p in actor.module.model.parameters()) - embedding

    used.peak = 1e9
    used.start()
    batch = batch_of([([5, 6], [7]), ([5, 6], [8, 9]), ([5, 6], [7, 8, 9])], groups=[0, 0, 0])
    used.add(used.flops(batch, lay_out(batch, torch.device("cpu")).queries))
    used._start -= 2.0
    # Rows of 3 and 4 tokens count (the third has weight 0): 5 tokens computed, 3 sampled. Of the second row's pairs of
    # tokens those within the prompt are the first row's.
    attention = 6 * config.num_hidden_layers * config.hidden_size * (3**2 + 4**2 - 2**2)
    flops = 6 * used.backbone * 5 + 6 * used.head * 3 + attention
    assert used._mfu(ONE_RANK)["perf/mfu/actor"] == pytest.approx(flops / 2e9, rel=0.05)


def test_without_a_known_peak_nothing_is_claimed(model):
    actor = PolicyLearner("actor", make_config(model))
    assert actor.utilization.metrics(ONE_RANK) == {}
