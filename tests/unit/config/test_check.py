"""Problems between settings that are each right."""

import pytest

from laurel.config.check import check
from laurel.config.load import load

A, R = "actor_rollout_ref.actor.", "actor_rollout_ref.rollout."


def test_the_defaults_have_no_problem():
    assert check(load([]).config) == []


@pytest.mark.parametrize(
    ("words", "field", "cure"),
    [
        (["data.train_batch_size=64", A + "ppo_mini_batch_size=128"], A + "ppo_mini_batch_size", "use at most 64"),
        (["data.train_batch_size=64", "critic.ppo_mini_batch_size=65"], "critic.ppo_mini_batch_size", "use at most 64"),
        (["data.gen_batch_size=8"], "data.gen_batch_size", "must be data.train_batch_size (1024) or be left out"),
        ([A + "use_dynamic_bsz=False"], A + "use_dynamic_bsz", "needs actor_rollout_ref.actor.ppo_micro_batch"),
        (
            [R + "log_prob_use_dynamic_bsz=False"],
            R + "log_prob_use_dynamic_bsz",
            "needs actor_rollout_ref.rollout.log_",
        ),
        (
            [R + "name=vllm", R + "tensor_model_parallel_size=3", "trainer.n_gpus_per_node=8"],
            R + "tensor_model_parallel_size",
            "does not divide trainer.n_gpus_per_node=8; use 1, 2, 4 or 8",
        ),
        ([A + "optim.lr=1e6"], A + "optim.lr", "is above 0.1"),
        (["critic.optim.lr=5"], "critic.optim.lr", "is above 0.1"),
        (["algorithm.adv_estimator=grpo", "critic.enable=True"], "critic.enable", "uses no critic"),
        (["trainer.logger=[]"], "trainer.logger", "names no logger"),
        (["trainer.logger=[file,console,file]"], "trainer.logger", "names file more than once"),
        (["trainer.resume_mode=resume_path"], "trainer.resume_mode", "needs trainer.resume_from_path"),
        (
            ["trainer.resume_mode=resume_path", "trainer.resume_from_path=/no/such"],
            "trainer.resume_from_path",
            "does not exist",
        ),
        (["trainer.critic_warmup=5", "trainer.total_training_steps=5"], "trainer.critic_warmup", "leaves no step"),
        (["trainer.default_local_dir=/tmp/ray/session_1/c"], "trainer.default_local_dir", "Ray's session folder"),
    ],
)
def test_problem(words, field, cure):
    (problem,) = check(load(words).config)
    assert problem.field == field
    assert cure in problem.cure


def test_a_critic_that_is_not_trained_is_not_checked():
    assert check(load(["algorithm.adv_estimator=grpo", "critic.optim.lr=5"]).config) == []


def test_a_checkpoint_folder_may_lie_elsewhere():
    words = ["trainer.resume_mode=resume_path", "trainer.resume_from_path=/no/such"]
    assert check(load(words).config)[0].machine is True
