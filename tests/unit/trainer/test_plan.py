"""What --dry-run says."""

import json

import pytest

from laurel.config.keys import leaves
from laurel.config.load import load
from laurel.trainer.memory import GIB, Shape, estimate, shape_of
from laurel.trainer.plan import describe, plan, resolved_tree

# Qwen2.5-0.5B: 494,032,768 parameters, of which the linear layers' q, k, v biases (24 x 1152) are not counted here.
QWEN = {
    "hidden_size": 896,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "intermediate_size": 4864,
    "vocab_size": 151936,
    "tie_word_embeddings": True,
}


@pytest.fixture
def model(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps(QWEN))
    return f"actor_rollout_ref.model.path={tmp_path / 'model'}"


@pytest.fixture
def files(tmp_path):
    for name, rows in (("train", 100), ("val", 30)):
        (tmp_path / f"{name}.jsonl").write_text('{"prompt": "a"}\n' * rows)
    return [f"data.{name}_files={tmp_path / name}.jsonl" for name in ("train", "val")]


def rows(*words):
    lines = plan(load(words)).splitlines()[1:]
    return {line.strip().partition("  ")[0]: line.strip().partition("  ")[2].strip() for line in lines}


def test_every_setting_is_printed_and_those_given_are_marked():
    text = resolved_tree(load(["trainer.nnodes=2", "data.max_prompt_length=100"]))
    assert "  * nnodes = 2\n" in text
    assert "    seed = 1\n" in text
    assert "    max_model_len = 612\n" in text
    assert text.count(" = ") == len(leaves())


def test_filtered_groups_are_in_the_plan(files):
    given = (*files, "data.train_batch_size=32", "algorithm.filter_groups.enable=True")
    found = rows(*given, "data.gen_batch_size=96", "algorithm.filter_groups.max_num_gen_batches=5")
    assert found["filter groups"] == (
        "32 groups that differ in acc, from generation batches of 96 prompts, at most 5 a step"
    )
    assert rows(*given)["filter groups"].endswith("generation batches of 32 prompts, as many as it takes a step")
    assert "filter groups" not in rows(*files)


def test_steps_and_batches(files):
    found = rows(
        *files,
        "data.train_batch_size=32",
        "actor_rollout_ref.actor.ppo_mini_batch_size=12",
        "actor_rollout_ref.actor.ppo_epochs=2",
        "actor_rollout_ref.rollout.n=4",
        "trainer.total_epochs=2",
        "trainer.device=cpu",
        "trainer.n_gpus_per_node=3",
        "trainer.nnodes=2",
    )
    assert found["placement"] == "2 nodes x 3 CPU processes; each runs every role"
    assert found["step"] == "32 prompts x 4 = 128 trajectories, about 22 a rank"
    assert found["actor updates"] == "6 a step, of 12 prompts x 4, 2 passes"
    assert found["steps"].startswith("6, from total_epochs=2 and 100 training rows")
    assert found["validation"] == "30 rows x 1, greedy, before training, at the end"


def test_total_training_steps_counts_over_epochs(files):
    assert rows(*files, "trainer.total_training_steps=7")["steps"].startswith("7, from total_training_steps")


def test_no_validation_without_data_and_no_steps_when_it_is_all(files):
    assert rows(files[0])["validation"] == "none, since data.val_files is empty"
    assert rows(*files, "trainer.val_only=True")["steps"] == "none, since trainer.val_only=True"
    assert rows(*files, "trainer.val_only=True")["validation"] == "30 rows x 1, greedy, before training"


def test_files_that_are_not_here():
    assert rows("data.train_files=/no/such.parquet")["steps"] == "unknown: the training files cannot be read here"


def test_roles_follow_the_algorithm():
    ppo = rows("algorithm.kl_ctrl.kl_coef=0.01", "actor_rollout_ref.model.path=org/m")
    assert ppo["critic"] == "org/m, lr 1e-05"
    assert ppo["reference"] == "the actor's first weights"
    assert ppo["KL in reward"] == "yes, since kl_ctrl.kl_coef was given: weight 0.01, fixed"
    grpo = rows("algorithm.adv_estimator=grpo", "algorithm.use_kl_in_reward=False")
    assert grpo["critic"] == "none"
    assert grpo["reference"] == "none, since no KL is used"
    assert grpo["KL in reward"] == "no, since use_kl_in_reward=False"
    assert "critic updates" not in grpo


def test_where_old_log_probs_come_from_and_what_corrects():
    once, key = "data.train_batch_size=8", "algorithm.rollout_correction."
    assert rows(once)["old log-probs"].startswith("the update's own")
    assert rows(once)["correction"] == "none"
    assert rows()["old log-probs"].startswith("one forward")
    given = (once, key + "rollout_is=token", key + "rollout_is_batch_normalize=True", key + "rollout_rs=geometric")
    given += (key + "rollout_rs_threshold=1.25", key + "rollout_token_veto_threshold=1e-4")
    found = rows(*given)
    assert found["old log-probs"].startswith("one forward")
    assert found["correction"] == (
        "weights by token up to 2.0, mean 1; kept by geometric ratio from 0.8 to 1.25; "
        "no trajectory with a token ratio below 0.0001"
    )
    bypassed = rows(*given, key + "bypass_mode=True")
    assert bypassed["old log-probs"].startswith("the engine's")
    assert bypassed["correction"] == "none"


def test_size_of_a_model(model):
    shape = shape_of(load([model]).config.actor_rollout_ref.model)
    assert shape == Shape(parameters=494_032_768 - 24 * 1152, cache_per_token=2 * 24 * 2 * 64)


def test_memory_by_hand(model):
    n = 494_032_768 - 24 * 1152
    words = [model, "algorithm.adv_estimator=grpo", "trainer.device=cuda", "data.train_batch_size=8"]
    one = estimate(load([*words, "trainer.n_gpus_per_node=1"]).config)
    assert one.parts == {"actor": 16 * n}
    assert one.cached == 8 * 1024
    assert one.cache_per_token == 6144 * 2
    two = estimate(load([*words, "trainer.n_gpus_per_node=2", "actor_rollout_ref.actor.use_kl_loss=True"]).config)
    assert two.parts == {"actor": 8 * n, "engine's copy": 2 * n, "reference": n}
    assert two.total == 11 * n
    ppo = estimate(load([model, "trainer.device=cpu"]).config)
    assert ppo.parts == {"actor": 16 * n, "critic": 16 * n}


def test_memory_is_told_in_gib_or_as_unknown(model):
    n = 494_032_768 - 24 * 1152
    text = rows(model, "algorithm.adv_estimator=grpo", "trainer.device=cuda", "trainer.n_gpus_per_node=1")["memory"]
    assert text.startswith(f"about {16 * n / GIB:.2f} GiB a rank")
    assert rows("actor_rollout_ref.model.path=org/m")["memory"].startswith("unknown")


def test_describe_is_settings_and_plan():
    text = describe(load([]))
    assert text.index("Settings") < text.index("Plan\n")
