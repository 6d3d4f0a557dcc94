"""Dynamic sampling over whole runs: resumed bit for bit, and ended without losing what was learned."""

import pytest

from e2e.runs import counts, differences, tensors

N, DRAWN = 4, 12
VALIDATED = 8
FILTERED = [
    "algorithm.adv_estimator=grpo",
    "algorithm.filter_groups.enable=True",
    "algorithm.filter_groups.max_num_gen_batches=6",
    "reward.num_workers=1",
    f"data.gen_batch_size={DRAWN}",
    "data.train_max_samples=50",
    "data.train_batch_size=8",
    f"actor_rollout_ref.rollout.n={N}",
    "actor_rollout_ref.actor.optim.lr=1e-3",
    "trainer.total_training_steps=5",
    "trainer.val_before_train=False",
    f"data.val_max_samples={VALIDATED}",
]
# After so many calls it breaks, or finds every answer right; it counts in the one process that scores.
REWARD = """
calls_left = {calls}

def compute_score(data_source, solution_str, ground_truth, extra_info):
    global calls_left
    calls_left -= 1
    open({notes!r}, "w").write(str({calls} - calls_left))
    if calls_left < 0 and {breaks}:
        raise ConnectionError("the judge is gone")
    right = float(solution_str == ground_truth or calls_left < 0)
    return {{"score": right, "acc": right}}
"""


@pytest.fixture
def reward(tmp_path):
    def make(calls: int = 10**9, *, breaks: bool = False) -> str:
        file = tmp_path / "counting.py"
        file.write_text(REWARD.format(calls=calls, breaks=breaks, notes=str(tmp_path / "calls")))
        return f"reward.custom_reward_function.path={file}"

    return make


@pytest.fixture
def straight(train, reward, tmp_path):
    run = train(*FILTERED, reward(), f"trainer.rollout_data_dir={tmp_path / 'samples straight'}", name="straight")
    assert run.code == 0, run.text
    assert int((tmp_path / "calls").read_text()) == calls_until(run, 6) + VALIDATED
    return run


def drawn_until(run, step: int) -> int:
    """Prompts that were drawn in the steps before ``step``."""
    batches = run.series("train/num_gen_batches")
    return int(sum(batches[earlier] for earlier in range(1, step))) * DRAWN


def calls_until(run, step: int) -> int:
    """Answers that were scored in the steps before ``step``."""
    return drawn_until(run, step) * N


def same(one, other) -> bool:
    end, mended = one.checkpoint(5), other.checkpoint(5)
    assert differences(tensors(end), tensors(mended)) == []
    assert counts(end) == counts(mended)
    assert one.numbers() == other.numbers()
    return True


def test_every_batch_counts_as_drawn_and_an_interrupted_run_goes_on_bit_for_bit(straight, train, reward, tmp_path):
    batches = straight.series("train/num_gen_batches")
    assert max(batches.values()) > 1, "some step needed more than one batch, or this test shows nothing"
    assert counts(straight.checkpoint(5))["run_state"]["consumed"] == sum(batches.values()) * DRAWN
    assert straight.series("training/epoch")[5] == sum(batches.values()) * DRAWN / 50
    assert all(score not in (0.0, 1.0) for score in straight.series("critic/score/mean").values())

    saving = "trainer.save_freq=2"
    again = [*FILTERED, saving, f"trainer.rollout_data_dir={tmp_path / 'samples again'}"]
    cut = train(*again, reward(calls_until(straight, 4) + 5, breaks=True), name="cut")  # dies in step 4
    assert cut.code == 1
    assert "ConnectionError" in cut.text
    resumed = train(*again, reward(), name="cut")
    assert resumed.code == 0, resumed.text
    assert "resumed at step 2 of 5" in resumed.text
    assert same(straight, resumed)
    samples = [[(folder / f"{step}.jsonl").read_text() for step in range(1, 6)] for folder in tmp_path.glob("samples*")]
    assert len(samples) == 2
    assert samples[0] == samples[1]


def test_when_nothing_informative_comes_the_run_ends_with_its_work_kept(straight, train, reward):
    """From step 4 on every answer counts as right. No checkpoint was due, and yet step 3 is there to go on from."""
    ended = train(*FILTERED, reward(calls_until(straight, 4)), name="ended")
    assert ended.code == 1
    error = ended.text[ended.text.index("error: ") :]
    assert "algorithm.filter_groups.max_num_gen_batches=6: at step 4 only 0 of 8 groups are informative after" in error
    assert "6 generation batches (72 prompts)" in error
    assert "all samples have the same acc, 1 on average" in error
    assert "Traceback" not in ended.text
    assert counts(ended.checkpoint(3))["run_state"]["step"] == 3
    assert counts(ended.checkpoint(3))["run_state"]["consumed"] == drawn_until(straight, 4)

    resumed = train(*FILTERED, reward(), name="ended")
    assert resumed.code == 0, resumed.text
    assert "resumed at step 3 of 5" in resumed.text
    assert same(straight, resumed)


def test_without_a_limit_a_pass_over_the_data_ends_it_at_the_first_step(train, reward):
    ended = train(*FILTERED, "algorithm.filter_groups.max_num_gen_batches=0", reward(0))
    assert ended.code == 1
    assert "the last 60 prompts, a whole pass over the training data, gave no informative group" in ended.text
    assert list(ended.folder.glob("global_step_*")) == [], "there was nothing to keep"
