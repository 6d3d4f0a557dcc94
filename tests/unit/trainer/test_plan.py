"""What --dry-run says."""

import json

import pytest

from laurel.config.keys import leaves
from laurel.config.load import load
from laurel.models.memory import GIB
from laurel.trainer import memory_rows
from laurel.trainer.plan import describe, plan, resolved_tree

# Qwen2.5-0.5B
PARAMETERS = 494_032_768
QWEN = {
    "model_type": "qwen2",
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


def test_memory_of_a_cpu_is_weights_and_optimizer(model, files):
    words = (model, *files, "trainer.device=cpu", "algorithm.adv_estimator=grpo", "data.train_batch_size=8")
    found = rows(*words)
    size = f"{8 * PARAMETERS / GIB:.2f}"
    assert found["memory"] == (
        f"about {16 * PARAMETERS / GIB:.2f} GiB a rank for weights and optimizer "
        f"(actor's weights and gradients {size}, actor's moments {size}), and activations"
    )
    # 30 rows of validation at once, of 1,024 tokens, 2 * 24 * 2 * 64 numbers of 4 bytes each
    assert found["KV cache"].startswith(f"up to {30 * 1024 * 6144 * 4 / GIB:.2f} GiB a rank")
    assert found["forwards"] == "packed up to 16384 tokens"


def test_memory_of_a_gpu_is_shown_by_phase_with_what_was_chosen_and_why(model, files, monkeypatch):
    words = (model, *files, "trainer.device=cuda", "trainer.n_gpus_per_node=1", "algorithm.adv_estimator=grpo")
    words += ("data.train_batch_size=128", "actor_rollout_ref.rollout.n=8", "data.max_prompt_length=128")
    monkeypatch.setattr(memory_rows, "gpu_memory", lambda: 139.8 * GIB)
    found = rows(*words)
    assert found["memory"] == "139.8 GiB of this machine's GPU; 89.5 GiB in tensors at the fullest"
    assert found["rollout"] == (
        "15.98 GiB: actor's weights 0.92, actor's masters and moments 5.52, KV cache 7.50, logits 1.74, sampling 0.30"
    )
    assert found["actor's update"] == (
        "89.52 GiB: actor's weights 0.92, actor's masters and moments 5.52, gradients 1.84, activations 50.51, "
        "logits 30.73"
    )
    assert found["slots"] == "1,024 sequences at once, of up to 640 tokens, in a KV cache of 655,360"
    assert found["forwards"] == "packed by tokens, see memory"
    assert found["actor micro-batches"] == "up to 65,536 tokens: larger ones are no faster"
    assert found["actor recomputation"] == "no: with all activations micro-batches of 65,536 tokens fit"
    assert found["actor offload"] == "no: all that a step needs fits beside masters and moments"
    assert found["held logits"] == "of 65,536 tokens of a micro-batch of the actor, as far as memory goes"
    assert not {"log-probs micro-batches", "critic micro-batches", "does not fit"} & found.keys()
    size = ("actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4", "actor_rollout_ref.actor.use_dynamic_bsz=False")
    given = rows(*words, *size, "critic.enable=True")
    assert given["actor micro-batches"] == "4 trajectories, given"
    assert given["critic micro-batches"] == "up to 65,536 tokens: larger ones are no faster"


def test_without_a_gpu_one_is_assumed_and_named(model, monkeypatch):
    monkeypatch.setattr(memory_rows, "gpu_memory", lambda: None)
    found = rows(model, "trainer.device=cuda", "trainer.n_gpus_per_node=1", "algorithm.adv_estimator=grpo")
    assert found["memory"].startswith(
        "80.0 GiB of a GPU that is assumed, since none is here; the ranks plan for theirs"
    )
    assert found["actor micro-batches"] == "up to 49,152 tokens: the most that fit"


def test_what_does_not_fit_is_in_the_plan(model, monkeypatch):
    monkeypatch.setattr(memory_rows, "gpu_memory", lambda: 4 * GIB)
    found = rows(model, "trainer.device=cuda", "trainer.n_gpus_per_node=1", "algorithm.adv_estimator=grpo")
    assert found["does not fit"].startswith("the actor's update on one row of 1,024 tokens takes")


def test_memory_of_an_unknown_model_is_unknown(files):
    for device in ("cpu", "cuda"):
        assert rows("actor_rollout_ref.model.path=org/m", f"trainer.device={device}")["memory"].startswith("unknown")


def test_describe_is_settings_and_plan():
    text = describe(load([]))
    assert text.index("Settings") < text.index("Plan\n")
