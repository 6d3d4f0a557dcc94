"""What goes wrong ends the run soon, with an exit code and a sentence that says what and where."""

import json
import resource

import pytest

from e2e.runs import run_command

REWARD = """
def judged(data_source, solution_str, ground_truth, extra_info):
    return {body} if extra_info["index"] == 17 else 1.0
"""
# 32 of 32 rows are drawn in each step, so row 17 comes in the first.
SHORT = [
    "algorithm.adv_estimator=grpo",
    "actor_rollout_ref.rollout.n=4",
    "data.train_max_samples=32",
    "data.train_batch_size=32",
    "trainer.total_training_steps=2",
    "trainer.val_before_train=False",
    "reward.custom_reward_function.name=judged",
]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("float('nan')", "returned nan; a score must be finite"),
        ("None", "returned None of type NoneType; return a number or a dict with 'score'"),
    ],
    ids=["raises", "nan", "none"],
)
def test_a_failing_score_is_left_out_and_said_with_its_function_and_row(body, said, train, tmp_path):
    file = tmp_path / "judge.py"
    file.write_text(REWARD.format(body=body))
    run = train(*SHORT, f"reward.custom_reward_function.path={file}", f"trainer.rollout_data_dir={tmp_path}/samples")
    assert run.code == 0, run.text
    assert f"reward function {file}:judged on row 17 (data_source 'test/reversal'" in run.text
    assert said in run.text
    assert run.series("reward/unscored") == {1: 4, 2: 4}
    assert run.series("reward/unscored/error") == {1: 4, 2: 4}
    assert run.series("critic/score/min") == {1: 1, 2: 1}, "a score that failed counts as none, not as 0"
    rows = [json.loads(line) for line in (tmp_path / "samples" / "1.jsonl").read_text().splitlines()]
    assert {row["score"] for row in rows if row["unscored"]} == {None}
    assert len([row for row in rows if said in row["unscored"]]) == 4


def test_a_reward_function_that_fails_for_half_of_the_samples_ends_the_run(train, tmp_path):
    file = tmp_path / "judge.py"
    file.write_text(REWARD.format(body="1 / 0").replace("== 17", "> 2"))
    run = train(*SHORT, f"reward.custom_reward_function.path={file}")
    assert run.code == 1, run.text
    error = run.text[run.text.index("error: ") :]
    assert "of 128 trajectories have no score; the first: reward function" in error
    assert "ZeroDivisionError: division by zero" in error
    assert list(run.folder.glob("global_step_*")) == []


def test_a_reward_function_of_other_arguments_is_refused_before_anything_starts(train, tmp_path):
    file = tmp_path / "judge.py"
    file.write_text("def judged(solution_str, ground_truth):\n    return 1.0\n")
    run = train(*SHORT, f"reward.custom_reward_function.path={file}")
    assert run.code == 2, run.text
    assert f"{file}:1 does not take 'data_source'; it is called as judged(data_source=" in run.text


def test_a_mistyped_key_ends_the_command_with_2_within_3_seconds(task, tmp_path):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    run = run_command([*task.arguments(), "data.train_batchsize=32", "trainer.nnodes=0"], folder=tmp_path, timeout_s=60)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert run.code == 2, run.text
    assert "error: 2 problems in the configuration:" in run.text
    assert "data.train_batchsize" in run.text
    assert "data.train_batch_size" in run.text, "the nearest key is named"
    assert "trainer.nnodes=0" in run.text
    # Processor time, so that a busy machine does not count against it
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 3
