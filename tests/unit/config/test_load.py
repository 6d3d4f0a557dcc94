"""From a command line to the resolved tree."""

import shlex

import pytest

from laurel.config.estimators import ESTIMATORS
from laurel.config.keys import leaves
from laurel.config.load import load, read
from laurel.types import ConfigError

OPTION_1 = shlex.split("""
    data.train_files=/path/to/train.parquet data.val_files=/path/to/val.parquet
    data.train_batch_size=1024 data.max_prompt_length=512 data.max_response_length=512
    actor_rollout_ref.model.path=Qwen/Qwen2.5-0.5B-Instruct actor_rollout_ref.actor.optim.lr=1e-6
    actor_rollout_ref.actor.ppo_mini_batch_size=256
    actor_rollout_ref.rollout.name=vllm actor_rollout_ref.rollout.tensor_model_parallel_size=1
    actor_rollout_ref.rollout.gpu_memory_utilization=0.4
    critic.optim.lr=1e-5 critic.model.path=Qwen/Qwen2.5-0.5B-Instruct
    algorithm.kl_ctrl.kl_coef=0.001 trainer.n_gpus_per_node=8 trainer.nnodes=2 trainer.total_epochs=15
""")
OPTION_2 = shlex.split("""
    data.train_batch_size=256 data.max_response_length=256
    actor_rollout_ref.actor.ppo_mini_batch_size=64 actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4
    actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=8
    actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=4
    critic.ppo_micro_batch_size_per_gpu=4 trainer.logger="['console','wandb']" trainer.val_before_train=False
    trainer.default_hdfs_dir=null trainer.save_freq=20 trainer.test_freq=20 trainer.total_epochs=2
    trainer.project_name=laurel_example_gsm8k trainer.experiment_name=qwen_ppo
""")


def problems(*words):
    with pytest.raises(ConfigError) as caught:
        load(words)
    return {problem.field: problem for problem in caught.value.problems}


def test_the_keys_of_the_guide_load():
    config = load(OPTION_1).config
    assert config.data.train_files == ["/path/to/train.parquet"]
    assert config.actor_rollout_ref.actor.optim.lr == 1e-6
    assert config.algorithm.use_kl_in_reward is True
    assert (config.trainer.n_gpus_per_node, config.trainer.nnodes, config.trainer.total_epochs) == (8, 2, 15)


def test_the_further_keys_of_the_guide_load():
    loaded = load([*OPTION_1, *OPTION_2])
    config = loaded.config
    assert config.data.train_batch_size == 256
    assert config.trainer.logger == ["console", "wandb"]
    assert config.trainer.val_before_train is False
    assert config.actor_rollout_ref.rollout.log_prob_use_dynamic_bsz is None  # decided when the GPU is known
    assert any(note.startswith("trainer.default_hdfs_dir has no job here") for note in loaded.notes)


def test_nothing_given_loads_with_the_defaults_of_the_page():
    config = load([]).config
    assert config.algorithm.adv_estimator == "gae"
    assert config.actor_rollout_ref.rollout.n == 1
    assert config.actor_rollout_ref.rollout.name == "native"
    assert config.trainer.logger == ["console", "file"]


def test_all_problems_at_once():
    found = problems(
        "data.train_file=a",
        "trainer.nnodes=1024.5",
        "trainer.seed=true",
        "algorithm.adv_estimator=rlo",
        "actor_rollout_ref.rollout.top_p=2",
        "actor_rollout_ref.model.lora_rank=8",
        "data.train_files=[a",
        "critic=3",
        "foo",
    )
    assert list(found) == [
        "command line",
        "data.train_file",
        "data.train_files",
        "critic",
        "actor_rollout_ref.rollout.top_p",
        "algorithm.adv_estimator",
        "trainer.nnodes",
        "trainer.seed",
        "actor_rollout_ref.model.lora_rank",
    ]


@pytest.mark.parametrize(
    ("word", "nearest"),
    [
        ("data.train_file=a", "data.train_files"),
        ("trainer.nnode=2", "trainer.nnodes"),
        ("optim.lr=1", "actor_rollout_ref.actor.optim.lr or critic.optim.lr"),
        ("trainer.train_batch_size=8", "data.train_batch_size"),
        ("actor_rollout_ref.rollout.gpu_memory_utilisation=0.4", "actor_rollout_ref.rollout.gpu_memory_utilization"),
        ("+trainer.nodes=2", "trainer.nnodes"),
        ("trainer.nnodes.x=2", "trainer.nnodes"),
    ],
)
def test_unknown_key_names_the_nearest(word, nearest):
    (problem,) = problems(word).values()
    assert problem.cure == f"unknown key; did you mean {nearest}?"


def test_unknown_key_like_nothing_and_unknown_reset():
    assert "laurel train --keys" in problems("qqq.zzz=1")["qqq.zzz"].cure
    assert "did you mean trainer.nnodes?" in problems("~trainer.nnode")["~trainer.nnode"].cure


@pytest.mark.parametrize(
    ("word", "value", "cure"),
    [
        ("trainer.nnodes=1024.5", 1024.5, "must be a whole number"),
        ("trainer.nnodes=true", True, "must be a whole number"),
        ("trainer.nnodes=two", "two", "must be a whole number"),
        ("trainer.nnodes=0", 0, "must be at least 1"),
        ("trainer.nnodes=null", None, "null is no value of this key; leave it out for the default 1"),
        ("trainer.val_only=1", 1, "must be True or False"),
        ("actor_rollout_ref.actor.optim.lr=high", "high", "must be a number, such as 0.5 or 1e-6"),
        ("actor_rollout_ref.actor.optim.lr=True", True, "must be a number, such as 0.5 or 1e-6"),
        ("actor_rollout_ref.actor.optim.betas=[0.9]", (0.9,), "must have as many values as [0.9,0.999]"),
        ("actor_rollout_ref.rollout.temperature=0", 0.0, "must be above 0"),
        ("algorithm.gamma=1.5", 1.5, "must be at most 1"),
        ("algorithm.adv_estimator=ppo", "ppo", "must be one of gae, grpo"),
        ("trainer.logger=[console,swanlab]", "swanlab", "must be one of console, file, tensorboard, wandb, mlflow"),
        ("algorithm.adv_estimator=gpro", "gpro", f"must be one of {', '.join(ESTIMATORS)}; did you mean grpo?"),
        (
            "algorithm.kl_penalty=low_var",
            "low_var",
            "must be one of kl, abs, mse, low_var_kl; did you mean low_var_kl?",
        ),
        ("reward.reward_kwargs=3", "3", "must be a dict, such as {name: value}; or set one entry: "),
    ],
)
def test_wrong_type_range_or_choice_names_the_value(word, value, cure):
    (problem,) = problems(word).values()
    assert problem.field == word.partition("=")[0]
    assert problem.value == value
    assert problem.cure.startswith(cure)


def test_infinite_numbers_of_a_file_are_refused(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text("actor_rollout_ref.actor.entropy_coeff: .nan\n")
    assert problems("--config", str(path))["actor_rollout_ref.actor.entropy_coeff"].cure == "must be a finite number"


def test_open_dicts_take_any_name():
    config = load(
        [
            "+reward.reward_kwargs.scale.low=0.5",
            "reward.reward_kwargs.name=x",
            "actor_rollout_ref.rollout.engine_kwargs.vllm.swap_space=4",
            "ray_kwargs.ray_init={num_cpus: 2}",
            "actor_rollout_ref.model.override_config.rope={a: [1,2]}",
        ]
    ).config
    assert config.reward.reward_kwargs == {"scale": {"low": 0.5}, "name": "x"}
    assert config.actor_rollout_ref.rollout.engine_kwargs == {"vllm": {"swap_space": 4}}
    assert config.ray_kwargs.ray_init == {"num_cpus": 2}
    assert config.actor_rollout_ref.model.override_config == {"rope": {"a": [1, 2]}}


def test_reset_takes_back_keys_groups_and_entries(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text("critic: {optim: {lr: 0.01}, ppo_epochs: 3}\nalgorithm.kl_ctrl.kl_coef: 0.5\n")
    loaded = load(
        [
            *("--config", str(path), "~critic", "~algorithm.kl_ctrl.kl_coef"),
            *("reward.reward_kwargs={a: 1, b: 2}", "~reward.reward_kwargs.a"),
        ]
    )
    assert loaded.config.critic.optim.lr == 1e-5
    assert loaded.config.critic.ppo_epochs == 1
    assert loaded.config.algorithm.use_kl_in_reward is False
    assert loaded.config.reward.reward_kwargs == {"b": 2}
    assert loaded.given == {"reward.reward_kwargs"}


def test_the_last_of_two_counts_and_is_said():
    loaded = load(["trainer.nnodes=2", "trainer.nnodes=3"])
    assert loaded.config.trainer.nnodes == 3
    assert "trainer.nnodes is given more than once; the last value counts: 3" in loaded.notes


def test_a_file_lies_under_the_command_line_without_a_word(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text("trainer: {nnodes: 2, experiment_name: 7}\ndata: {train_files: a.parquet}\n")
    loaded = load(["trainer.nnodes=3", "--config", str(path)])
    assert loaded.config.trainer.nnodes == 3
    assert loaded.config.trainer.experiment_name == "7"
    assert loaded.config.data.train_files == ["a.parquet"]
    assert not any("more than once" in note for note in loaded.notes)


def test_files_lie_over_each_other_key_by_key_and_entry_by_entry(tmp_path):
    (tmp_path / "run.yaml").write_text(
        "algorithm: {adv_estimator: grpo, filter_groups: {metric: score}}\n"
        "reward: {reward_kwargs: {format_score: 0.1, nested: {a: 1, b: 2}}}\n"
    )
    (tmp_path / "preset.yaml").write_text(
        "algorithm: {filter_groups: {enable: true, metric: acc}}\nreward: {reward_kwargs: {nested: {b: 3}, other: x}}\n"
    )
    files = [word for name in ("run", "preset") for word in ("--config", f"{tmp_path / name}.yaml")]
    config = load([*files, "algorithm.filter_groups.max_num_gen_batches=3", "reward.reward_kwargs.nested.c=4"]).config
    assert config.algorithm.adv_estimator == "grpo"
    assert config.algorithm.filter_groups.model_dump() == {"enable": True, "metric": "acc", "max_num_gen_batches": 3}
    assert config.reward.reward_kwargs == {"format_score": 0.1, "nested": {"a": 1, "b": 3, "c": 4}, "other": "x"}
    assert load([*files[2:], *files[:2]]).config.algorithm.filter_groups.metric == "score", "the later file counts"
    typed = load([*files, "reward.reward_kwargs={only: 1}", "~algorithm.filter_groups"]).config
    assert typed.reward.reward_kwargs == {"only": 1}, "what is typed replaces the whole"
    assert not typed.algorithm.filter_groups.enable


def test_null_in_a_file_empties_an_open_dict(tmp_path):
    (tmp_path / "a.yaml").write_text("reward: {reward_kwargs: {a: 1}}\n")
    (tmp_path / "b.yaml").write_text("reward: {reward_kwargs: null}\n")
    files = [word for name in ("a", "b") for word in ("--config", f"{tmp_path / name}.yaml")]
    assert load(files).config.reward.reward_kwargs == {}


def test_an_unknown_key_of_a_file_names_the_file(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text("trainer: {nnode: 2}\n")
    assert f"(in {path})" in problems("--config", str(path))["trainer.nnode"].cure


def test_groups_as_dicts_and_empty_groups(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text("critic:\ntrainer:\n  seed: 4\n")
    trainer = load(["--config", str(path), "trainer={nnodes: 2, logger: [file]}"]).config.trainer
    assert (trainer.seed, trainer.nnodes, trainer.logger) == (4, 2, ["file"])
    assert problems("trainer={nnode: 2}")["trainer.nnode"].cure == "unknown key; did you mean trainer.nnodes?"


@pytest.mark.parametrize(
    ("word", "nearest"),
    [
        ("algorithm.adv_estimator=RLOO", "rloo"),
        ("algorithm.adv_estimator=Dr_GRPO", "grpo"),
        ("algorithm.adv_estimator=reinforce++", "reinforce_plus_plus"),
        ("algorithm.adv_estimator=otb", "optimal_token_baseline"),
        ("algorithm.adv_estimator=passk", "grpo_passk"),
        ("actor_rollout_ref.actor.policy_loss.loss_mode=ppo", "vanilla"),
        ("actor_rollout_ref.actor.policy_loss.loss_mode=gmpo", "geo_mean"),
        ("actor_rollout_ref.actor.policy_loss.loss_mode=clipcov", "clip_cov"),
        ("actor_rollout_ref.actor.loss_agg_mode=seq-mean", "seq-mean-token-mean"),
        ("actor_rollout_ref.actor.kl_loss_type=kl3", "low_var_kl"),
    ],
)
def test_the_nearest_choice_is_named_by_any_usual_name(word, nearest):
    key = word.partition("=")[0]
    assert problems(word)[key].cure.endswith(f"; did you mean {nearest}?")


@pytest.mark.parametrize("value", ["@@", "-7", "0", "{a: 1}"])
@pytest.mark.parametrize("key", sorted(leaves()))
def test_a_wrong_value_of_any_key_is_told_and_breaks_nothing_else(key, value):
    """With the device left to the machine, as most people leave it: what follows from a refused value must not fail."""
    wrong = ["algorithm.adv_estimator=nosuch", f"{key}={value}"]
    found = {problem.field for problem in read(wrong).problems}
    assert "algorithm.adv_estimator" in found
