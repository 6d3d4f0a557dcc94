"""RankHost in this process: what the Ray actor is a shell around."""

import pytest
import torch

from laurel.batch.build import build_batch
from laurel.config.load import load
from laurel.models.tiny import write_tiny_model
from laurel.types import Group, LaurelError, Prompt, Request, SamplingParams, Score, Trajectory, Turn
from laurel.workers.dispatch import Budget, UpdatePlan, put_together, share_forward, share_updates
from laurel.workers.host import RankHost, Updates

PROMPT = (1, 8, 9)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_tiny_model(tmp_path_factory.mktemp("tiny") / "model", hidden=32, layers=1)


def config(model, *overrides):
    return load(
        [
            "data.train_files=unused.parquet",
            "data.train_batch_size=2",
            "data.max_prompt_length=8",
            "data.max_response_length=8",
            f"actor_rollout_ref.model.path={model}",
            "actor_rollout_ref.actor.ppo_mini_batch_size=2",
            "actor_rollout_ref.actor.optim.lr=1e-2",
            "algorithm.adv_estimator=grpo",
            "trainer.device=cpu",
            "trainer.n_gpus_per_node=1",
            *overrides,
        ]
    ).config


def host(model, *overrides):
    made = RankHost(config(model, *overrides), rank=0, world=1, device="cpu")
    made.build(made.open_meeting("127.0.0.1"), Updates(10, 10))
    return made


def sample(ready):
    """Four completions of 8 tokens, by request id."""
    requests = [
        Request(str(i), PROMPT, SamplingParams(max_tokens=8, ignore_eos=True), seed=i, group="g") for i in range(4)
    ]
    found = [completion for some in ready.generate(requests) for completion in some]
    return {completion.request_id: completion for completion in found}


def batch_of(completions):
    trajectories = [
        Trajectory(i, (Turn(c.token_ids, True, c.log_probs),), "length", c.policy_version, Score(float(i)))
        for i, c in enumerate(completions[str(number)] for number in range(4))
    ]
    return build_batch([Group(Prompt(0, PROMPT, (), "x", "y"), tuple(trajectories))])


def test_the_engine_samples_from_what_the_learner_learned(model):
    ready = host(model)
    try:
        for version in (0, 1):
            ready.wake(version)
            completions = sample(ready)
            ready.sleep()
            assert sorted(completions) == ["0", "1", "2", "3"]
            assert {c.policy_version for c in completions.values()} == {version}
            batch = batch_of(completions)
            shares = share_forward(batch, Budget(20), ranks=1)
            log_probs = put_together(batch, "log_probs", shares, [ready.actor.log_probs(shares[0])])
            sampled = batch.response_mask
            torch.testing.assert_close(log_probs[sampled], batch.rollout_log_probs[sampled], rtol=0, atol=1e-5)
            batch = batch.with_(old_log_probs=log_probs, advantages=(batch.score - 1.5)[batch.row_of_token])
            plan = UpdatePlan(2, 1, False, 1, Budget(20))
            metrics = ready.actor.update(share_updates(batch, plan, step=1, ranks=1)[0])
            assert metrics["actor/grad_norm"] > 0
            after = put_together(batch, "log_probs", shares, [ready.actor.log_probs(shares[0])])
            assert (after - log_probs)[sampled].abs().max() > 1e-3, (
                "the second round checks the engine against new weights"
            )
    finally:
        ready.close()


def test_roles_that_a_run_does_not_need_are_not_loaded(model):
    ready = host(model)
    try:
        with pytest.raises(LaurelError, match="no reference policy"):
            _ = ready.ref
        with pytest.raises(LaurelError, match=r"critic\.enable"):
            _ = ready.critic
        assert ready.learner("actor") is ready.actor
    finally:
        ready.close()


def test_the_reference_is_there_for_either_kl_term(model):
    assert not config(model).needs_reference
    assert config(model, "actor_rollout_ref.actor.use_kl_loss=True").needs_reference
    assert config(model, "algorithm.use_kl_in_reward=True").needs_reference


def test_an_engine_that_may_keep_its_cache_does_not_sleep(model):
    ready = host(model, "actor_rollout_ref.rollout.free_cache_engine=False")
    try:
        ready.wake(0)
        ready.sleep()
        assert len(sample(ready)) == 4, "awake still"
    finally:
        ready.close()


def test_an_error_of_the_engine_rises_where_completions_are_awaited(model):
    ready = host(model)
    try:
        with pytest.raises(LaurelError, match="the engine sleeps"):
            sample(ready)
    finally:
        ready.close()
