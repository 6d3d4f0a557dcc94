"""Training makes held-out answers better, and only training on true rewards does.

Validation holds 80 prompts that neither the warm start nor reinforcement learning saw, each sampled 4 times. If the 4
samples of a prompt were all alike, the difference of two validations at accuracy p would have a standard deviation of
sqrt(2 p (1 - p) / 80): at most 0.08, at p = 0.5, and 0.05 at the 0.12 of the warm-started model. NOISE is three times
that; a run that learned must gain well more, and controls must not gain it.
"""

from statistics import fmean

import pytest

from e2e.runs import differences, tensors, validation_rows

ACCURACY = "val-core/test/reversal/acc/mean@4"
NOISE = 0.16
STEPS = 40

COMMON = [
    "actor_rollout_ref.rollout.val_kwargs.n=4",
    "actor_rollout_ref.actor.optim.lr=1e-3",
    "trainer.test_freq=20",
]
GRPO = [
    *COMMON,
    "algorithm.adv_estimator=grpo",
    "data.train_batch_size=32",
    "actor_rollout_ref.rollout.n=8",
]
# 256 trajectories a step as for GRPO, in two updates; the critic, and KL in the reward.
PPO = [
    *COMMON,
    "algorithm.adv_estimator=gae",
    "algorithm.kl_ctrl.kl_coef=0.001",
    "data.train_batch_size=256",
    "actor_rollout_ref.actor.ppo_mini_batch_size=128",
    "critic.optim.lr=1e-3",
]


@pytest.mark.parametrize("algorithm", [GRPO, PPO], ids=["grpo", "ppo"])
def test_a_run_learns_what_holds_for_prompts_it_never_saw(algorithm, train, task):
    run = train(*algorithm, f"trainer.total_training_steps={STEPS}")
    assert run.code == 0, run.text
    accuracy = run.series(ACCURACY)
    assert accuracy.keys() == {0, 20, 40}
    assert 0 < accuracy[0] < 0.3, "the warm start succeeds sometimes"
    assert accuracy[STEPS] > task.best_constant + 0.30, accuracy
    assert accuracy[STEPS] > accuracy[0] + 2 * NOISE, accuracy
    assert validation_rows(run.text) == [80, 80, 80]

    score = run.series("critic/score/mean")
    assert len(score) == STEPS
    assert sum(score[step] for step in range(31, 41)) > sum(score[step] for step in range(1, 11)) + 10 * NOISE
    if algorithm is PPO:
        divergence = run.series("critic/kl")
        assert abs(divergence[1]) < 1e-6, "before the first update the policy is the reference"
        assert divergence[STEPS] > 0.05
        assert set(run.series("critic/kl_coeff").values()) == {0.001}
        values = run.series("critic/values/mean")
        late = range(31, 41)
        assert values[1] == 0, "the value head starts at zero"
        assert abs(fmean(values[step] for step in late) - fmean(score[step] for step in late)) < NOISE, "it follows"


@pytest.mark.parametrize("algorithm", [GRPO, PPO], ids=["grpo", "ppo"])
def test_rewards_for_shuffled_answers_teach_nothing_true(algorithm, train, task):
    run = train(*algorithm, f"trainer.total_training_steps={STEPS}", train_file=task.shuffled)
    assert run.code == 0, run.text
    accuracy = run.series(ACCURACY)
    assert accuracy[STEPS] < accuracy[0] + NOISE, accuracy
    assert accuracy[STEPS] < task.best_constant + 0.30 - NOISE, "far from what a run that learns reaches"


def test_without_a_learning_rate_nothing_moves(train):
    run = train(*GRPO, "actor_rollout_ref.actor.optim.lr=0", "trainer.total_training_steps=4", "trainer.save_freq=1")
    assert run.code == 0, run.text
    accuracy = run.series(ACCURACY)
    assert accuracy[0] == accuracy[4], "same weights and same seeds: the same answers"
    first, last = (
        {name: t for name, t in tensors(run.checkpoint(step)).items() if ":param/" in name} for step in (1, 4)
    )
    assert first
    assert differences(first, last) == []
    assert len(set(run.series("critic/score/mean").values())) > 1, "each step sampled anew"
