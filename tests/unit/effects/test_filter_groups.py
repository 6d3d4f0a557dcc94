"""Effects of algorithm.filter_groups.*: on which groups a step learns from. Engines answer 42, which is right."""

import pytest
from unit.effects.cases import run_of
from unit.effects.registry import effect

from laurel.rollout.filter_groups import NothingToLearn

KEY = "algorithm.filter_groups"
TWO = "actor_rollout_ref.rollout.n=2"
COUNTING = """
calls = 0

def compute_score(data_source, solution_str, ground_truth, extra_info):
    global calls
    calls += 1
    return {"score": float(calls), "acc": 1.0}
"""


def sampled(config):
    """Groups of a step and the number of requests; None for groups if the step found nothing to learn from."""
    run, pool = run_of(config)
    try:
        groups, _ = run.roles.rollouts.collect(run.next_prompts, step=1)
    except NothingToLearn:
        groups = None
    return groups, len(pool.requests)


@effect(f"{KEY}.enable")
def test_enable_leaves_out_groups_that_teach_nothing(key, settings):
    groups, requests = sampled(settings(TWO, f"{key}=False"))
    assert (len(groups), requests) == (4, 8)
    # Every answer is right, so a pass over the 10 rows, in batches of 4, finds nothing
    assert sampled(settings(TWO, f"{key}=True")) == (None, 3 * 8)


@effect(f"{KEY}.metric")
def test_metric_is_what_must_differ(key, settings, tmp_path):
    (tmp_path / "mine.py").write_text(COUNTING)
    one = "reward.num_workers=1"  # the function counts in its process
    given = (TWO, f"{KEY}.enable=True", one, f"reward.custom_reward_function.path={tmp_path}/mine.py")
    assert sampled(settings(*given, f"{key}=acc"))[0] is None
    for metric in ("score", "seq_reward", "seq_final_reward"):
        groups, requests = sampled(settings(*given, f"{key}={metric}"))
        assert (len(groups), requests) == (4, 8)


@effect(f"{KEY}.max_num_gen_batches")
def test_max_num_gen_batches_ends_the_search(key, settings):
    for most in (1, 2):
        config = settings(TWO, f"{KEY}.enable=True", f"{key}={most}")
        assert sampled(config) == (None, most * 8)
        run, _ = run_of(config)
        with pytest.raises(NothingToLearn, match=f"max_num_gen_batches={most}: at step 1 only 0 of 4 groups"):
            run.roles.rollouts.collect(run.next_prompts, step=1)
