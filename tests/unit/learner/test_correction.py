"""The gauge where only the update's own forward gives the learner's log-probabilities, and the columns of the loss."""

import math

import pytest
import torch
from unit.learner.learner_cases import make_batch, make_config
from unit.learner.test_shared_prompts import batch_of

from laurel.batch.pack import rank_shares
from laurel.learner.learner import PolicyLearner

NAMES = ("rollout/log_prob_diff/mean", "rollout/log_prob_diff/max")


def batch_and_log_probs(model, **actor):
    learner = PolicyLearner("actor", make_config(model, lr=0.0, **actor))
    batch = batch_of([([5, 6], [7]), ([5, 6], [8, 9]), ([5, 6], [7])], groups=[0, 1, 2])  # the last has weight 0
    return learner, batch, learner.log_probs([batch])[0]


def test_the_only_update_measures_over_micro_batches(model):
    """Ratios 1, 2 and 1/2 of the learner to the engine, in two micro-batches."""
    learner, batch, found = batch_and_log_probs(model)
    shift = torch.zeros_like(found)
    shift[batch.response_mask] = torch.tensor([1.0, 2.0, 0.5, 1e9]).log()
    metrics = learner.update(rank_shares(batch.with_(rollout_log_probs=found - shift), 1, 4))
    assert metrics[NAMES[0]] == pytest.approx(2 * math.log(2) / 3, abs=1e-5)
    assert metrics[NAMES[1]] == pytest.approx(math.log(2), abs=1e-5)
    assert metrics["rollout_corr/k3_kl"] == pytest.approx(0.5 / 3, abs=1e-5)
    assert metrics["rollout_corr/ratio/mean"] == pytest.approx(3.5 / 3, abs=1e-5)
    assert metrics["rollout_corr/chi2_token"] == pytest.approx(5.25 / 3 - 1, abs=1e-5)
    assert metrics["rollout_corr/eff_sample_size"] == pytest.approx((3.5 / 3) ** 2 / (5.25 / 3), abs=1e-5)


def test_with_old_log_probs_the_controller_measures(model):
    learner, batch, found = batch_and_log_probs(model)
    both = batch.with_(rollout_log_probs=found - 0.25, old_log_probs=found)
    assert not learner.update(rank_shares(both, 1, 1000)).keys() & set(NAMES)


def test_under_bypass_the_first_update_measures(model):
    """The second would see the policy moved by the first."""
    config = make_config(model, lr=0.1)
    bypass = config.algorithm.rollout_correction.model_copy(update={"bypass_mode": True})
    config = config.model_copy(update={"algorithm": config.algorithm.model_copy(update={"rollout_correction": bypass})})
    learner = PolicyLearner("actor", config)
    batch = batch_of([([5, 6], [7]), ([5, 6], [8, 9]), ([5, 6], [7])], groups=[0, 1, 2])
    rollout = learner.log_probs([batch])[0] - 0.25
    both = batch.with_(rollout_log_probs=rollout, old_log_probs=rollout)
    metrics = learner.update([*rank_shares(both, 1, 1000), *rank_shares(both, 1, 1000)])
    assert metrics[NAMES[0]] == pytest.approx(0.25, abs=1e-5)
    assert abs(metrics["actor/ppo_kl"] + 0.25) > 1e-4


@pytest.mark.parametrize("column", ["rollout_is_weights", "chosen"])
def test_columns_of_the_loss_reach_it(model, column):
    """Weights of 2 double the policy loss; chosen tokens add nothing to that of clip_cov."""
    loss = {"loss_mode": "clip_cov"}
    learner = PolicyLearner("actor", make_config(model, lr=0.0, policy_loss=loss))
    batch = make_batch()
    value, factor = {
        "rollout_is_weights": (torch.full((batch.token_count,), 2.0), 2.0),
        "chosen": (batch.response_mask, 0.0),
    }[column]
    plain = learner.update(rank_shares(batch, 1, 40))["actor/pg_loss"]
    changed = learner.update(rank_shares(batch.with_(**{column: value}), 1, 40))["actor/pg_loss"]
    assert changed == pytest.approx(factor * plain, abs=1e-6)
    assert abs(plain) > 1e-3


def test_over_ranks_the_largest_is_taken_and_the_rest_adds_up(model):
    class Two:
        """Stands in for two ranks of which the other brings 0.7."""

        def sum(self, values):
            return {name: value + 0.7 for name, value in values.items()}

        def max(self, value):
            return max(value, 0.7)

    learner = PolicyLearner("actor", make_config(model))
    learner.ranks = Two()
    part = {"actor/pg_loss": torch.tensor(1.0), NAMES[0]: torch.tensor(0.1), NAMES[1]: torch.tensor(0.5)}
    assert learner._over_ranks(part) == pytest.approx({"actor/pg_loss": 1.7, NAMES[0]: 0.8, NAMES[1]: 0.7})
