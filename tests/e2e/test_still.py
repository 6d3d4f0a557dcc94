"""With a learning rate of 0 nothing moves: whatever the loss, over steps and over several updates of one batch the ratio
is exactly 1, no token is clipped and the KL to the first policy is 0."""

from __future__ import annotations

import pytest

LOSSES = ["vanilla", "gspo", "cispo", "kl_cov"]
COMMAND = [
    "algorithm.adv_estimator=grpo",
    "data.train_batch_size=8",
    "actor_rollout_ref.rollout.n=4",
    "actor_rollout_ref.actor.ppo_mini_batch_size=4",
    "actor_rollout_ref.actor.optim.lr=0",
    "actor_rollout_ref.actor.use_kl_loss=True",
    "trainer.total_training_steps=3",
    "trainer.val_before_train=False",
    "data.val_max_samples=4",
]


@pytest.mark.parametrize("loss", LOSSES)
def test_nothing_moves(loss: str, train) -> None:  # type: ignore[no-untyped-def]
    run = train(*COMMAND, f"actor_rollout_ref.actor.policy_loss.loss_mode={loss}")
    assert run.code == 0, run.text
    assert set(run.series("actor/grad_norm")) == {1, 2, 3}
    assert max(run.series("actor/grad_norm").values()) > 0, "a gradient of 0 would prove nothing"
    for metric in ("actor/ppo_kl", "actor/pg_clipfrac"):
        values = run.series(metric)
        if values:
            assert set(values) == {1, 2, 3}
            assert max(abs(value) for value in values.values()) < 1e-6, metric
    assert max(abs(value) for value in run.series("actor/kl_loss").values()) < 1e-6
    assert max(run.series("rollout/log_prob_diff/max").values()) < 1e-4
