"""Each file of examples/algorithms, laid over a command, trains: two steps of two updates, with what is its own."""

import math
from pathlib import Path

import pytest
import yaml

from laurel.config.load import load

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "algorithms"
PRESETS = sorted(file.stem for file in FOLDER.glob("*.yaml"))
COMMAND = [
    "data.train_batch_size=16",
    "data.val_max_samples=8",
    "actor_rollout_ref.actor.ppo_mini_batch_size=8",
    "actor_rollout_ref.rollout.n=8",
    "actor_rollout_ref.actor.optim.lr=1e-3",
    "critic.optim.lr=1e-3",
    "trainer.total_training_steps=2",
    "trainer.val_before_train=False",
]
WITH_CRITIC = {"ppo"}
WITH_KL_IN_REWARD = {"ppo", "rloo", "reinforce_plus_plus", "remax"}
WITH_KL_IN_LOSS = {"grpo"}
FILTERED = {"dapo"}
WITH_BASELINE = {"remax"}


def config_of(preset, *words):
    return load(["--config", str(FOLDER / f"{preset}.yaml"), "trainer.device=cpu", *words]).config


def test_the_presets_are_those_of_the_page():
    assert (
        sorted(["cispo", "dapo", "dr_grpo", "gspo", "grpo", "ppo", "reinforce_plus_plus", "remax", "rloo"]) == PRESETS
    )


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_holds_the_settings_of_its_algorithm_and_no_others(preset):
    text = (FOLDER / f"{preset}.yaml").read_text()
    assert "arXiv:" in text.partition("\nalgorithm:")[0], "its paper is named at the top"
    content = yaml.safe_load(text)
    assert content.keys() <= {"algorithm", "actor_rollout_ref", "critic", "reward"}, "the rest is the command's"
    assert content["actor_rollout_ref"].keys() <= {"actor", "rollout"}
    assert content["actor_rollout_ref"].get("rollout", {}).keys() <= {"n"}
    assert not any(key.startswith("optim") for key in content["actor_rollout_ref"]["actor"])


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_leaves_nothing_idle_where_a_batch_is_used_twice(preset):
    """What is said to have no effect would be noise in the file."""
    words = ["--config", str(FOLDER / f"{preset}.yaml"), "trainer.device=cpu", "data.train_batch_size=512"]
    notes = [note for note in load(words).notes if "no effect" in note]
    assert notes == []


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_trains(preset, train):
    run = train(f"--config={FOLDER / preset}.yaml", *COMMAND)
    assert run.code == 0, run.text
    assert list(run.series("critic/score/mean")) == [1, 2]
    assert run.checkpoint(2).is_dir()
    for metric in ("actor/pg_loss", "actor/grad_norm", "critic/advantages/max", "response_length/mean"):
        assert all(math.isfinite(value) for value in run.series(metric).values()), metric
    assert all(norm > 0 for norm in run.series("actor/grad_norm").values()), "there is something to learn"

    assert bool(run.series("critic/vf_loss")) is (preset in WITH_CRITIC)
    assert bool(run.series("critic/kl")) is (preset in WITH_KL_IN_REWARD)
    assert bool(run.series("actor/kl_loss")) is (preset in WITH_KL_IN_LOSS)
    discarded = run.series("rollout/discarded_tokens")
    if preset in FILTERED:
        informative, batches = run.series("filter_groups/informative"), run.series("train/num_gen_batches")
        for step in (1, 2):
            assert informative[step] - run.series("filter_groups/surplus")[step] == 16
            assert informative[step] + run.series("filter_groups/dropped")[step] == 16 * batches[step]
            assert discarded[step] > 0
    elif preset in WITH_BASELINE:
        assert all(16 <= tokens <= 16 * 4 for tokens in discarded.values()), "a greedy answer to each of 16 prompts"
    else:
        assert set(discarded.values()) == {0}


def test_the_over_long_penalty_of_dapo_reaches_the_scores(train, tmp_path):
    """Answers have up to 4 tokens, of which the last one is the buffer: no end within 3 costs one point."""
    folder = tmp_path / "samples"
    log = ["reward.reward_kwargs.overlong_buffer_cfg.log=True", f"trainer.rollout_data_dir={folder}"]
    run = train(f"--config={FOLDER / 'dapo.yaml'}", *COMMAND, *log, "trainer.total_training_steps=1")
    assert run.code == 0, run.text
    rows = [yaml.safe_load(line) for line in (folder / "1.jsonl").read_text().splitlines()]
    assert len(rows) == 16 * 8
    for row in rows:
        assert row["extras"]["overlong_reward"] == (-1.0 if row["extras"]["overlong"] else 0.0)
        assert row["score"] == row["extras"]["score"] + row["extras"]["overlong_reward"]
    assert 0 < sum(row["extras"]["overlong"] for row in rows) < len(rows)


def test_later_files_and_what_is_typed_win_over_a_preset():
    config = config_of("dapo", "algorithm.filter_groups.metric=score", "--config", str(FOLDER / "rloo.yaml"))
    assert config.algorithm.adv_estimator == "rloo"
    assert config.algorithm.filter_groups.enable
    assert config.algorithm.filter_groups.metric == "score"
