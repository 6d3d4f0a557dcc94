"""A run that was cut off goes on as if it had not been: the same weights, moments, state, samples and metrics, bit for
bit. And whatever an interrupted save left behind, the newest whole checkpoint is found.
"""

import re
import shutil

import pytest

from e2e.runs import Outcome, counts, differences, tensors, validation_rows

# 50 rows and 16 prompts a step: the first pass over the data ends within step 4, after the checkpoint.
COMMON = [
    "reward.num_workers=1",  # the reward function counts its calls in its process
    "data.train_max_samples=50",
    "data.train_batch_size=16",
    "actor_rollout_ref.actor.optim.lr=1e-3",
    "trainer.total_training_steps=6",
    "trainer.save_freq=3",
    "trainer.test_freq=2",
]
GRPO = [
    *COMMON,
    "algorithm.adv_estimator=grpo",
    "actor_rollout_ref.rollout.n=4",
    "actor_rollout_ref.actor.use_kl_loss=True",
    "actor_rollout_ref.actor.entropy_coeff=0.001",
    "actor_rollout_ref.actor.optim.lr_scheduler_type=cosine",
    "actor_rollout_ref.actor.optim.lr_warmup_steps=2",
]
# Everything that has a state: two epochs of shuffled mini-batches, a critic, and a KL coefficient that moves.
PPO = [
    *COMMON,
    "algorithm.adv_estimator=gae",
    "algorithm.use_kl_in_reward=True",
    "algorithm.kl_ctrl.type=adaptive",
    "algorithm.kl_ctrl.kl_coef=0.05",
    "algorithm.kl_ctrl.horizon=100",
    "algorithm.kl_ctrl.target_kl=0.001",
    "actor_rollout_ref.actor.ppo_mini_batch_size=8",
    "actor_rollout_ref.actor.ppo_epochs=2",
    "actor_rollout_ref.actor.shuffle=True",
    "critic.optim.lr=1e-3",
    "trainer.critic_warmup=1",
]
# Breaks when it has been called so many times, as a judge does whose machine goes down.
FRAGILE = """
calls_left = int(open({file!r}).read())

def compute_score(data_source, solution_str, ground_truth, extra_info):
    global calls_left
    calls_left -= 1
    if calls_left < 0:
        raise ConnectionError("the judge is gone")
    return float(solution_str == ground_truth) + 0.1 * len(solution_str)
"""


@pytest.fixture
def fragile(tmp_path):
    """Arguments for a reward function that breaks down after ``calls`` calls."""

    def make(calls: int):
        (tmp_path / "calls").write_text(str(calls))
        (tmp_path / "fragile.py").write_text(FRAGILE.format(file=str(tmp_path / "calls")))
        return f"reward.custom_reward_function.path={tmp_path / 'fragile.py'}"

    return make


@pytest.mark.parametrize(("algorithm", "trajectories"), [(GRPO, 16 * 4), (PPO, 16)], ids=["grpo", "ppo"])
def test_interrupted_equals_uninterrupted_bit_for_bit(algorithm, trajectories, train, fragile, tmp_path):
    straight = train(*algorithm, fragile(10**9), f"trainer.rollout_data_dir={tmp_path / 'samples'}", name="straight")
    assert straight.code == 0, straight.text

    # The same command dies in the sampling of step 5, after a checkpoint at step 3 and a logged step 4 ...
    again = [*algorithm, f"trainer.rollout_data_dir={tmp_path / 'samples again'}"]
    validations = 3 * 80  # before training and at steps 2 and 4
    cut = train(*again, fragile(validations + 4 * trajectories + trajectories // 2), name="cut")
    assert cut.code == 1
    assert "ConnectionError" in cut.text
    assert max(cut.series("training/global_step")) == 4
    # ... and is started again.
    resumed = train(*again, fragile(10**9), name="cut")
    assert resumed.code == 0, resumed.text
    assert f"going on from {resumed.checkpoint(3)}" in resumed.text
    assert "resumed at step 3 of 6" in resumed.text
    assert "changed setting" not in resumed.text

    end, mended = straight.checkpoint(6), resumed.checkpoint(6)
    assert differences(tensors(end), tensors(mended)) == []
    assert counts(end) == counts(mended)
    assert resumed.numbers() == straight.numbers()
    samples = [[(folder / f"{step}.jsonl").read_text() for step in range(1, 7)] for folder in tmp_path.glob("samples*")]
    assert len(samples) == 2
    assert samples[0] == samples[1]

    # What the comparison is worth: everything it looks at has moved since the checkpoint
    names = {name.partition(":")[2].partition("/")[0] for name in tensors(end)}
    assert names == {"param", "exp_avg", "exp_avg_sq"}
    assert len(differences(tensors(end), tensors(straight.checkpoint(3)))) == len(tensors(end))
    assert counts(end)["run_state"]["consumed"] == 96
    assert straight.series("training/epoch")[3] < 1 < straight.series("training/epoch")[4]
    if algorithm is PPO:
        assert len(set(straight.series("critic/kl_coeff").values())) > 3
        assert {name.partition("/")[0] for name in tensors(end)} == {"actor", "critic"}


SHORT = [
    "algorithm.adv_estimator=grpo",
    "actor_rollout_ref.rollout.n=4",
    "data.train_batch_size=8",
    "actor_rollout_ref.actor.optim.lr=1e-3",
    "trainer.save_freq=1",
    "trainer.val_before_train=False",
]


@pytest.fixture(scope="module")
def _three_steps(task, limits, shared_ray, tmp_path_factory):
    from e2e.runs import run_here

    arguments = [*task.arguments(), *limits, *SHORT, "trainer.total_training_steps=3"]
    run = run_here(arguments, tmp_path_factory.mktemp("three") / "run")
    assert run.code == 0, run.text
    return run


@pytest.fixture
def three_steps(_three_steps, tmp_path) -> Outcome:
    """The folder of a run of three steps with a checkpoint of each, to break and go on from."""
    shutil.copytree(_three_steps.folder, tmp_path / "run")
    return Outcome(0, _three_steps.text, tmp_path / "run")


def test_after_a_torn_save_the_newest_whole_checkpoint_is_used(three_steps, train):
    torn = three_steps.folder / "global_step_4.incomplete"
    shutil.copytree(three_steps.checkpoint(3) / "actor", torn / "actor")
    shard = next(three_steps.checkpoint(3).rglob("*.safetensors"))
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1  # a single bit of a single weight
    shard.write_bytes(data)

    run = train(*SHORT, "trainer.total_training_steps=4")
    assert run.code == 0, run.text
    assert f"passed over {torn}: it was never finished" in run.text
    assert f"passed over {run.checkpoint(3)}: actor/{shard.name} does not match its checksum" in run.text
    assert f"going on from {run.checkpoint(2)}" in run.text
    assert "resumed at step 2 of 4" in run.text
    assert not torn.exists()
    assert list(run.series("critic/score/mean")) == [1, 2, 3, 4]
    # Step 3 was trained again from step 2: it is what it was before it was damaged
    assert three_steps.checkpoint(3) == run.checkpoint(3)
    assert shard.read_bytes()[-1] == data[-1] ^ 1


def test_a_finished_run_says_that_nothing_is_left_to_do(three_steps, train):
    before = three_steps.log
    run = train(*SHORT, "trainer.total_training_steps=3")
    assert run.code == 0, run.text
    assert "NOTHING LEFT TO DO: the checkpoint is at step 3 of 3" in run.text
    assert [row for row in run.log if "actor/pg_loss" in row] == [row for row in before if "actor/pg_loss" in row]
    assert not run.checkpoint(4).exists()


def test_a_setting_that_differs_from_the_checkpoint_is_said_and_counts(three_steps, train):
    run = train(*SHORT, "trainer.total_training_steps=4", "actor_rollout_ref.actor.optim.lr=0")
    assert run.code == 0, run.text
    assert "changed setting actor_rollout_ref.actor.optim.lr: 0.001 in the checkpoint, now 0.0" in run.text
    assert "changed setting trainer.total_training_steps: 3 in the checkpoint, now 4" in run.text
    changed = set(re.findall(r"changed setting (\S+):", run.text))
    assert changed == {"actor_rollout_ref.actor.optim.lr", "trainer.total_training_steps"}
    third, fourth = (
        {name: t for name, t in tensors(run.checkpoint(step)).items() if ":param/" in name} for step in (3, 4)
    )
    assert differences(third, fourth) == [], "step 4 had the new learning rate of 0"


def test_resume_mode_disable_starts_anew_and_keeps_the_old_log(three_steps, train):
    run = train(*SHORT, "trainer.total_training_steps=1", "trainer.resume_mode=disable")
    assert run.code == 0, run.text
    assert "training: 1 steps" in run.text
    assert list(run.series("critic/score/mean")) == [1]
    assert (run.folder / "metrics.previous-1.jsonl").exists()


def test_a_checkpoint_named_by_hand_is_used_or_refused(three_steps, train):
    named = [*SHORT, "trainer.total_training_steps=3", "trainer.resume_mode=resume_path"]
    kept = three_steps.folder.with_name("kept")
    shutil.copytree(three_steps.checkpoint(1), kept / "global_step_1")
    run = train(*named, f"trainer.resume_from_path={kept / 'global_step_1'}", name="elsewhere")
    assert run.code == 0, run.text
    assert "resumed at step 1 of 3" in run.text
    assert differences(tensors(run.checkpoint(3)), tensors(three_steps.checkpoint(3))) == []

    (kept / "global_step_1" / "run_state.json").unlink()
    refused = train(*named, f"trainer.resume_from_path={kept / 'global_step_1'}", name="refused")
    assert refused.code == 1
    assert "cannot be loaded: run_state.json is missing" in refused.text
    assert validation_rows(refused.text) == []
