"""What null stands for."""

import os
from pathlib import Path

import pytest

from laurel.config import derive
from laurel.config.derive import in_ray_session
from laurel.config.load import load


def config(*words):
    return load(words).config


@pytest.fixture
def gpus(monkeypatch):
    def have(count):
        monkeypatch.setattr(derive, "visible_gpus", lambda: count)

    return have


@pytest.mark.parametrize(
    ("words", "on"),
    [
        ([], False),
        (["algorithm.kl_ctrl.kl_coef=0.001"], True),
        (["algorithm.kl_ctrl.kl_coef=0.001", "algorithm.use_kl_in_reward=False"], False),
        (["algorithm.use_kl_in_reward=True"], True),
        (["algorithm.kl_ctrl.kl_coef=0.001", "~algorithm.kl_ctrl.kl_coef"], False),
        (["algorithm.kl_ctrl.type=adaptive"], False),
    ],
)
def test_kl_in_reward_follows_the_coefficient(words, on):
    assert config(*words).algorithm.use_kl_in_reward is on


def test_critic_follows_the_estimator():
    assert config().critic.enable is True
    assert config("algorithm.adv_estimator=grpo").critic.enable is False


def test_critic_model_is_the_actors_where_not_given():
    actor = "actor_rollout_ref.model."
    found = config(
        actor + "path=org/a", actor + "trust_remote_code=True", actor + "enable_gradient_checkpointing=False"
    ).critic.model
    assert (found.path, found.trust_remote_code, found.enable_gradient_checkpointing) == ("org/a", True, False)
    found = config(actor + "path=org/a", "critic.model.path=org/b", "critic.model.enable_gradient_checkpointing=False")
    assert (found.critic.model.path, found.critic.model.enable_gradient_checkpointing) == ("org/b", False)
    assert found.actor_rollout_ref.model.enable_gradient_checkpointing is True
    assert config(actor + "path=org/a", "critic.model.path=null").critic.model.path == "org/a"


def test_clip_sides():
    actor = config("actor_rollout_ref.actor.clip_ratio=0.3", "actor_rollout_ref.actor.clip_ratio_high=0.4")
    actor = actor.actor_rollout_ref.actor
    assert (actor.clip_ratio_low, actor.clip_ratio_high) == (0.3, 0.4)


def test_packing_follows_the_micro_batch_size():
    part = config("actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4").actor_rollout_ref
    assert (part.actor.use_dynamic_bsz, part.rollout.log_prob_use_dynamic_bsz) == (False, True)
    part = config(
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4", "actor_rollout_ref.actor.use_dynamic_bsz=True"
    ).actor_rollout_ref
    assert part.actor.use_dynamic_bsz is True


def test_mini_batches():
    small = config("data.train_batch_size=64")
    assert small.actor_rollout_ref.actor.ppo_mini_batch_size == 64
    assert small.critic.ppo_mini_batch_size == 64
    assert config().actor_rollout_ref.actor.ppo_mini_batch_size == 256
    given = config("data.train_batch_size=64", "actor_rollout_ref.actor.ppo_mini_batch_size=128")
    assert given.actor_rollout_ref.actor.ppo_mini_batch_size == 128  # check.py refuses it with a cure
    assert config("actor_rollout_ref.actor.ppo_epochs=3").critic.ppo_epochs == 3


def test_a_generation_batch_is_a_step_s_prompts_unless_groups_are_filtered():
    filtered = ("data.train_batch_size=64", "algorithm.filter_groups.enable=True")
    assert (config(*filtered).data.gen_batch_size, config(*filtered).prompts_at_once) == (64, 64)
    assert config(*filtered, "data.gen_batch_size=192").prompts_at_once == 192
    assert config(*filtered[:1], "data.gen_batch_size=192").prompts_at_once == 64  # check.py refuses it with a cure


def test_lengths():
    found = config("data.max_prompt_length=100", "data.max_response_length=50").actor_rollout_ref
    assert found.rollout.max_model_len == 150
    assert found.actor.loss_scale_factor == 50.0


def test_device_and_ranks_follow_the_machine(gpus):
    gpus(4)
    assert (config().trainer.device, config().trainer.n_gpus_per_node) == ("cuda", 4)
    assert config("trainer.device=cpu").trainer.n_gpus_per_node == 1
    assert config("trainer.n_gpus_per_node=2").trainer.n_gpus_per_node == 2
    gpus(0)
    loaded = load([])
    assert (loaded.config.trainer.device, loaded.config.trainer.n_gpus_per_node) == ("cpu", 1)
    assert any(note.startswith("trainer.device is cpu, since") for note in loaded.notes)
    assert config("trainer.device=cuda").trainer.n_gpus_per_node == 1


def test_several_gpus_asked_for_on_a_machine_without_one_are_gpus_of_other_nodes(gpus):
    gpus(0)
    loaded = load(["trainer.n_gpus_per_node=8", "trainer.nnodes=2"])
    assert loaded.config.trainer.device == "cuda"
    assert any("set trainer.device=cpu to run that many processes" in note for note in loaded.notes)
    assert config("trainer.n_gpus_per_node=8", "trainer.device=cpu").trainer.device == "cpu"
    assert config("trainer.n_gpus_per_node=1").trainer.device == "cpu", "a small command still runs on a laptop"


def test_folders_are_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    trainer = config("trainer.project_name=p", "trainer.experiment_name=e", "trainer.rollout_data_dir=r").trainer
    assert trainer.default_local_dir == str(tmp_path / "checkpoints/p/e")
    assert trainer.validation_data_dir == str(tmp_path / "checkpoints/p/e/validation")
    assert trainer.rollout_data_dir == str(tmp_path / "r")
    assert config("trainer.default_local_dir=/checkpoints").trainer.default_local_dir == "/checkpoints"
    assert config("trainer.default_local_dir=~/c").trainer.default_local_dir == os.path.expanduser("~/c")


def test_what_lies_here_gets_its_whole_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    found = config("actor_rollout_ref.model.path=model", "data.train_files=~/t.parquet")
    assert found.actor_rollout_ref.model.path == str(tmp_path / "model")
    assert found.critic.model.path == str(tmp_path / "model")
    assert found.data.train_files == [os.path.expanduser("~/t.parquet")]
    assert config("actor_rollout_ref.model.path=Qwen/x").actor_rollout_ref.model.path == "Qwen/x"


def test_a_job_of_ray_keeps_its_checkpoints_at_home(tmp_path, monkeypatch):
    folder = tmp_path / "session_2026-12-01_1" / "runtime_resources" / "working_dir_files" / "_ray_pkg_1"
    folder.mkdir(parents=True)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    loaded = load([])
    assert loaded.config.trainer.default_local_dir == str(tmp_path / "home/checkpoints/laurel/default")
    assert any("a folder that Ray deletes" in note for note in loaded.notes)
    assert not any("Ray deletes" in note for note in load(["trainer.default_local_dir=/checkpoints"]).notes)


@pytest.mark.parametrize(
    ("path", "inside"),
    [
        ("/tmp/ray/session_latest/logs", True),
        ("/tmp/ray/session_2026-12-01", True),
        ("/scratch/r/session_1/runtime_resources/working_dir_files/x", True),
        ("/tmp/ray", False),
        ("/home/u/session_1/checkpoints", False),
    ],
)
def test_in_ray_session(path, inside):
    assert in_ray_session(Path(path)) is inside
