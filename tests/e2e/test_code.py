"""GRPO with the code reward: a tiny model writes programs, which are run in the sandbox, and learns which are right."""

import json
import random

import pytest

from e2e.reversal import one_thread
from laurel.models.tiny import warm_start, write_tiny_model

DIGITS = "0123456789"
PROGRAM = "print({})"
CHARACTERS = DIGITS + "print()"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model that writes a program for each digit, which prints that digit about half of the time."""
    folder = tmp_path_factory.mktemp("code")
    model = write_tiny_model(
        folder / "model", characters="".join(dict.fromkeys(CHARACTERS)), hidden=64, layers=2, seed=0
    )
    noisy = random.Random(1)
    lessons = [
        (digit, PROGRAM.format(digit if noisy.random() < 0.5 else noisy.choice(DIGITS)))
        for digit in DIGITS
        for _ in range(60)
    ]
    with one_thread():
        warm_start(model, lessons, steps=300)
    rows = [
        {
            "data_source": "laurel/code",
            "prompt": [{"role": "user", "content": digit}],
            "reward_model": {"style": "rule", "ground_truth": json.dumps({"inputs": [""], "outputs": [digit]})},
        }
        for digit in DIGITS
    ]
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


@pytest.mark.slow
def test_a_model_learns_to_write_programs_that_pass_their_tests(folder, limits, shared_ray, tmp_path):
    from e2e.runs import run_here

    run = run_here(
        [
            f"data.train_files={folder}/train.jsonl",
            f"data.val_files={folder}/train.jsonl",
            f"actor_rollout_ref.model.path={folder}/model",
            "algorithm.adv_estimator=grpo",
            "actor_rollout_ref.rollout.n=16",
            "actor_rollout_ref.actor.optim.lr=1e-3",
            "data.train_batch_size=10",
            *limits,
            "data.max_response_length=12",
            "actor_rollout_ref.rollout.val_kwargs.n=16",
            "trainer.total_training_steps=15",
            "trainer.device=cpu",
        ],
        tmp_path / "run",
    )
    assert run.code == 0, run.text
    scores = run.series("critic/score/mean")
    assert 0.1 < scores[1] < 0.85, "there is something to learn"
    accuracy = run.series("val-core/laurel/code/acc/mean@16")
    assert accuracy[15] > accuracy[0] + 0.15
    assert set(run.series("reward/unscored").values()) == {0}
