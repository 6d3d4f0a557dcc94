"""With a learning rate of 0 nothing moves: whatever the loss, over steps and several updates of one batch the ratio is
1, no token is clipped, and the KL to the first policy is 0."""

from __future__ import annotations

import pytest

from laurel.config.losses import LOSSES

CLIPS = {"vanilla", "gspo", "cispo", "geo_mean", "clip_cov", "dppo_tv", "dppo_kl"}
COMMAND = [
    "algorithm.adv_estimator=grpo",
    "data.train_batch_size=8",
    "actor_rollout_ref.rollout.n=4",
    "actor_rollout_ref.actor.ppo_mini_batch_size=4",
    "actor_rollout_ref.actor.optim.lr=0",
    "actor_rollout_ref.actor.use_kl_loss=True",
    "trainer.total_training_steps=2",
    "trainer.val_before_train=False",
    "data.val_max_samples=4",
]


@pytest.mark.parametrize("loss", LOSSES)
def test_nothing_moves(loss: str, train) -> None:  # type: ignore[no-untyped-def]
    run = train(*COMMAND, f"actor_rollout_ref.actor.policy_loss.loss_mode={loss}")
    assert run.code == 0, run.text
    assert set(run.series("actor/grad_norm")) == {1, 2}
    assert max(run.series("actor/grad_norm").values()) > 0, "a gradient of 0 would prove nothing"
    still = ["actor/ppo_kl", "actor/kl_loss", *(["actor/pg_clipfrac"] if loss in CLIPS - {"clip_cov"} else [])]
    for metric in still:
        values = run.series(metric)
        assert set(values) == {1, 2}, metric
        assert max(abs(value) for value in values.values()) < 1e-6, metric
    # The largest difference of any token, so that nothing cancels
    assert max(run.series("rollout/log_prob_diff/max").values()) < 1e-4


def test_a_critic_and_kl_in_the_reward(train) -> None:  # type: ignore[no-untyped-def]
    ppo = ["algorithm.adv_estimator=gae", "algorithm.use_kl_in_reward=True", "critic.optim.lr=0"]
    run = train(*COMMAND, *ppo)
    assert run.code == 0, run.text
    assert max(abs(value) for value in run.series("critic/kl").values()) < 1e-6
    assert set(run.series("critic/values/mean").values()) == {0.0}, "the value head starts at 0 and stays there"
