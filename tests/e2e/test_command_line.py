"""The command as a user types it, in a process of its own that starts and ends its own Ray."""

import re

from e2e.runs import Outcome, differences, run_command, tensors

SHORT = [
    "algorithm.adv_estimator=grpo",
    "actor_rollout_ref.rollout.n=4",
    "data.train_batch_size=8",
    "actor_rollout_ref.actor.optim.lr=1e-3",
    "trainer.total_training_steps=2",
]
STAMP = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d "


def test_the_command_trains_prints_plain_lines_and_gives_what_the_same_settings_give_here(
    task, limits, train, tmp_path
):
    words = [*task.arguments(), *limits, *SHORT]
    mine = {"HOME": str(tmp_path), "RAY_TMPDIR": "/tmp", "RAY_ADDRESS": "local"}
    run = run_command(words, folder=tmp_path / "start", timeout_s=240, environment=mine)
    assert run.code == 0, run.text
    lines = run.text.splitlines()
    for said in (
        r"320 prompts from 1 file",
        r"Started Ray ",
        r"node \S+: rank 0 on cpu, \d+ threads?",
        r"training: 2 steps",
        r"validation at step 0: 80 rows \| test/reversal: .*acc/mean@1 ",
        r"step 1  score ",
        r"step 2  score ",
        r"validation at step 2: 80 rows",
    ):
        assert any(re.match(STAMP + said, line) for line in lines), f"no line {said!r} in\n{run.text}"
    assert "\x1b[" not in run.text, "output that is no terminal has no colours"
    assert "Traceback" not in run.text

    # The default folder lies where the command was started
    folder = tmp_path / "start" / "checkpoints" / "laurel" / "default"
    assert f"saved {folder / 'global_step_2'}" in run.text
    there = Outcome(0, run.text, folder)
    assert there.series("critic/score/mean").keys() == {1, 2}
    assert not (tmp_path / ".ray").exists(), "Ray's own token file would change every later `ray start`"

    here = train(*SHORT)
    assert here.code == 0, here.text
    assert differences(tensors(there.checkpoint(2)), tensors(here.checkpoint(2))) == []
