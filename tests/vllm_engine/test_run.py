"""Training with vLLM, by the command line: it samples what the native engine samples, so both runs are one."""

from dataclasses import replace

import pytest
from e2e.reversal import write_task
from e2e.runs import run_command

ROUNDING = ("rollout/log_prob_diff/", "rollout_corr/")


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    return write_task(tmp_path_factory.mktemp("reversal"), heads=2, kv_heads=1)


@pytest.mark.parametrize("ranks", [1, 2])
def test_grpo_with_vllm_is_grpo_with_native(ranks, task, tmp_path):
    found = {}
    for name in ("native", "vllm"):
        run = run_command(
            [
                *task.arguments(),
                "data.max_prompt_length=8",
                "data.max_response_length=4",
                "data.train_batch_size=32",
                "algorithm.adv_estimator=grpo",
                "actor_rollout_ref.rollout.n=8",
                f"actor_rollout_ref.rollout.name={name}",
                "actor_rollout_ref.rollout.val_kwargs.do_sample=True",
                "actor_rollout_ref.actor.optim.lr=1e-3",
                "trainer.total_training_steps=2",
                "trainer.test_freq=1",
                f"trainer.n_gpus_per_node={ranks}",
                f"trainer.default_local_dir={tmp_path / name}",
            ],
            folder=tmp_path / "cwd",
            timeout_s=200,
        )
        assert run.code == 0, run.text
        found[name] = replace(run, folder=tmp_path / name)
    vllm, native = found["vllm"].numbers(), found["native"].numbers()
    assert [step for step, _ in vllm] == [step for step, _ in native]
    for (_, ours), (_, theirs) in zip(vllm, native, strict=True):
        assert ours.keys() == theirs.keys()
        for name, value in ours.items():
            if not name.startswith(ROUNDING):
                assert value == pytest.approx(theirs[name], rel=1e-4, abs=1e-6), name
    # What the learner says of vLLM's tokens, after an update as before it
    gaps = found["vllm"].series("rollout/log_prob_diff/max")
    assert sorted(gaps) == [1, 2]
    assert max(gaps.values()) < 1e-4
