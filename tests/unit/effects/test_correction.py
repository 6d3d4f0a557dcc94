"""Effects of algorithm.rollout_correction.*: on the log-probabilities and tokens that travel to the ranks, and on a run
whose engine and learner disagree."""

import json
import math
from dataclasses import replace

import pytest
import torch
from unit.effects.cases import ACTOR, GRPO, batch_of, run_of
from unit.effects.registry import effect

from laurel.trainer.train import learn, train_step
from laurel.types import LaurelError

KEY = "algorithm.rollout_correction"
RATIOS = (1.5, 4.0, 0.5, 1.0)  # of the learner to the engine: two rows of two sampled tokens


def two_rows(ratios=RATIOS):
    old, rollout = torch.zeros(8), torch.zeros(8)
    batch = batch_of((4, 4), groups=(0, 0), old_log_probs=old, advantages=torch.ones(8))
    rollout[batch.response_mask] = -torch.tensor(ratios).log()
    return batch.with_(rollout_log_probs=rollout)


def sent(config, ranks, batch):
    """What rank 0 gets for the update on ``batch``: its only micro-batch, and the mini-batch; and the metrics."""
    run, _ = run_of(config, ranks)
    trained, metrics = run.roles.correction.apply(batch)
    run.roles.actor.update(trained)
    (mini,) = ranks.sent[-1][1][0]
    (micro,) = mini.micro_batches
    return micro, mini, metrics


def weights_of(config, ranks, ratios=RATIOS):
    batch = two_rows(ratios)
    micro, _, _ = sent(config, ranks, batch)
    return micro.rollout_is_weights[batch.response_mask].tolist()


def kept_of(config, ranks, ratios=RATIOS):
    batch = two_rows(ratios)
    micro, mini, _ = sent(config, ranks, batch)
    kept = micro.response_mask[batch.response_mask].tolist()
    assert mini.token_count == sum(kept)
    assert mini.row_count == (kept[0] or kept[1]) + (kept[2] or kept[3])
    return kept


@effect(f"{KEY}.rollout_is")
def test_rollout_is_weighs_tokens_or_rows(key, settings, ranks):
    assert weights_of(settings(*GRPO, f"{key}=token"), ranks) == pytest.approx([1.5, 2, 0.5, 1])
    assert weights_of(settings(*GRPO, f"{key}=sequence"), ranks) == pytest.approx([2, 2, 0.5, 0.5])
    micro, _, _ = sent(settings(*GRPO), ranks, two_rows())
    assert not micro.has("rollout_is_weights")


@effect(f"{KEY}.rollout_is", f"{KEY}.rollout_rs", f"{KEY}.rollout_token_veto_threshold", f"{KEY}.bypass_mode")
def test_correction_has_old_log_probs_computed_unless_it_is_bypassed(key, settings, ranks):
    value = {"rollout_is": "token", "rollout_rs": "token", "rollout_token_veto_threshold": 1e-4, "bypass_mode": True}
    more = (f"{KEY}.rollout_rs_threshold=2",) if key.endswith("rollout_rs") else ()
    passes = int(not key.endswith("bypass_mode"))
    for given, expected in (((), 0), ((f"{key}={value[key.rpartition('.')[2]]}", *more), passes)):
        run, _ = run_of(settings(*GRPO, *given), ranks)  # one update per batch
        ranks.sent.clear()
        run.roles.actor.log_probs(two_rows())
        assert ranks.methods().count("log_probs") == expected


@effect(f"{KEY}.bypass_mode")
def test_bypass_takes_the_engine_s_log_probs_as_the_old_ones(key, settings, ranks):
    several = f"{ACTOR}.ppo_mini_batch_size=2"
    batch = two_rows()
    for value, passes in ((False, 1), (True, 0)):
        run, _ = run_of(settings(*GRPO, several, f"{key}={value}"), ranks)
        ranks.sent.clear()
        old = run.roles.actor.log_probs(batch)
        assert torch.equal(old, batch.rollout_log_probs) is value
        assert ranks.methods().count("log_probs") == passes
        trained, metrics = run.roles.correction.apply(batch.with_(old_log_probs=old))
        assert trained.has("rollout_is_weights") is False
        assert ("rollout/log_prob_diff/mean" in metrics) is not value  # the learner measures it then


@effect(f"{KEY}.rollout_is_threshold")
def test_rollout_is_threshold_is_the_largest_weight(key, settings, ranks):
    for limit in (3.0, 1.2):
        config = settings(*GRPO, f"{KEY}.rollout_is=token", f"{key}={limit}")
        assert weights_of(config, ranks) == pytest.approx([min(ratio, limit) for ratio in RATIOS])


@effect(f"{KEY}.rollout_is_batch_normalize")
def test_rollout_is_batch_normalize_makes_their_mean_1(key, settings, ranks):
    for value, mean in ((False, 1.25), (True, 1.0)):
        found = weights_of(settings(*GRPO, f"{KEY}.rollout_is=token", f"{key}={value}"), ranks)
        assert sum(found) / 4 == pytest.approx(mean)


@effect(f"{KEY}.rollout_rs")
def test_rollout_rs_leaves_tokens_or_rows_out(key, settings, ranks):
    """Rows (1.5, 4): product 6, geometric mean 2.45; (0.5, 1): 0.5 and 0.71. Kept are 0.4 to 2.5."""
    limits = (f"{KEY}.rollout_rs_threshold=2.5",)
    assert kept_of(settings(*GRPO), ranks) == [True] * 4
    for level, kept in (
        ("token", [True, False, True, True]),
        ("sequence", [False, False, True, True]),
        ("geometric", [True] * 4),
    ):
        assert kept_of(settings(*GRPO, *limits, f"{key}={level}"), ranks) == kept


@effect(f"{KEY}.rollout_rs_threshold")
def test_rollout_rs_threshold_is_the_largest_ratio_kept(key, settings, ranks):
    level = f"{KEY}.rollout_rs=token"
    for upper, kept in ((5.0, [True] * 4), (3.0, [True, False, True, True]), (1.2, [False, False, False, True])):
        assert kept_of(settings(*GRPO, level, f"{key}={upper}"), ranks) == kept


@effect(f"{KEY}.rollout_rs_threshold_lower")
def test_rollout_rs_threshold_lower_is_the_smallest_ratio_kept(key, settings, ranks):
    limits = (f"{KEY}.rollout_rs=token", f"{KEY}.rollout_rs_threshold=5")
    for lower, kept in ((0.9, [True, True, False, True]), (0.1, [True] * 4), (1.1, [True, True, False, False])):
        assert kept_of(settings(*GRPO, *limits, f"{key}={lower}"), ranks) == kept


@effect(f"{KEY}.rollout_token_veto_threshold")
def test_a_veto_leaves_out_every_row_with_such_a_token(key, settings, ranks):
    for limit, kept in ((0.4, [True] * 4), (0.6, [True, True, False, False])):
        assert kept_of(settings(*GRPO, f"{key}={limit}"), ranks) == kept


def far_apart(config, ranks, *gaps):
    """A run of which each step's engine is that far from the learner, in log-probability, and what it says."""
    said = []
    run, _ = run_of(config, ranks)
    run = replace(run, gauge=replace(run.gauge, say=said.append))
    for step, gap in enumerate(gaps, 1):
        _, metrics = run.roles.correction.apply(two_rows([math.exp(gap)] * 4))
        run.gauge.watch(step, metrics)
    return said


@effect(f"{KEY}.log_prob_diff_warn")
def test_log_prob_diff_warn_says_so_each_time_it_is_passed_anew(key, settings, ranks):
    gaps = (0.01, 0.06, 0.07, 0.01, 0.2)
    for given, steps in (((), [2, 5]), ((f"{key}=0.1",), [5]), ((f"{key}=null",), [])):
        said = far_apart(settings(*GRPO, *given), ranks, *gaps)
        assert [line.partition(":")[2].split()[1] for line in said] == [f"{step}:" for step in steps]
        assert all("log_prob_diff_warn=" in line for line in said)


@effect(f"{KEY}.log_prob_diff_stop")
def test_log_prob_diff_stop_ends_the_run(key, settings, ranks):
    far_apart(settings(*GRPO), ranks, 0.3)
    far_apart(settings(*GRPO, f"{key}=0.4"), ranks, 0.3)
    with pytest.raises(
        LaurelError, match=r"step 2: .*0\.3 .*above algorithm\.rollout_correction\.log_prob_diff_stop=0\.2"
    ):
        far_apart(settings(*GRPO, f"{key}=0.2"), ranks, 0.1, 0.3)


@effect(f"{KEY}.log_prob_diff_stop")
def test_the_step_that_ends_a_run_is_logged(key, settings, ranks):
    """The engine of these runs reports -1 for each token, the learner 0."""
    several = f"{ACTOR}.ppo_mini_batch_size=2"
    for value in ("null", 0.5):
        run, _ = run_of(settings(*GRPO, several, f"{key}={value}"), ranks)
        run.state.step = 1
        if value == "null":
            train_step(run)
        else:
            with pytest.raises(LaurelError, match=r"log_prob_diff_stop=0\.5"):
                train_step(run)
        lines = [line for file in run.checkpoint_dir.rglob("*.jsonl") for line in file.read_text().splitlines()]
        assert json.loads(lines[-1])["rollout/log_prob_diff/mean"] == pytest.approx(1.0)


@effect(f"{KEY}.rollout_rs_threshold")
def test_what_is_rejected_still_counts_in_advantages_and_metrics(key, settings, ranks):
    """Ratios are e. The batch that is reported keeps all its sampled tokens; what travels to the ranks does not."""
    for upper, kept in ((3.0, True), (2.0, False)):
        run, _ = run_of(settings(*GRPO, f"{KEY}.rollout_rs=token", f"{key}={upper}"), ranks)
        groups, _ = run.roles.rollouts.collect(run.next_prompts, step=1)
        batch, metrics = learn(run.roles, run.algo, run.state, groups)
        sampled = int(batch.response_mask.sum())
        assert sampled == sum(len(t.response_ids) for group in groups for t in group.trajectories)
        minis = next(arguments for method, arguments in reversed(ranks.sent) if method == "update_actor")[0]
        assert [mini.token_count for mini in minis] == ([sampled] if kept else []), "no update without a lesson"
        assert metrics["rollout_corr/rollout_rs_masked_fraction"] == float(not kept)
