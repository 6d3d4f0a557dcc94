"""Keys that stand outside the tree: retired, planned, moved."""

from fnmatch import fnmatchcase

import pytest

from laurel.config.keys import leaf_of, leaves, sections
from laurel.config.load import load
from laurel.config.verl import moved
from laurel.config.verl.planned import PLANNED
from laurel.config.verl.retired import RETIRED
from laurel.types import ConfigError

PATTERNS = [pattern for row in (*RETIRED, *PLANNED) for pattern in row.patterns]


def refused(word, *more):
    with pytest.raises(ConfigError) as caught:
        load([word, *more])
    (problem,) = caught.value.problems
    return problem


@pytest.mark.parametrize(
    "word",
    [
        "trainer.balance_batch=True",
        "data.return_raw_chat=True",
        "actor_rollout_ref.model.use_remove_padding=True",
        "actor_rollout_ref.model.use_fused_kernels=False",
        "actor_rollout_ref.actor.use_torch_compile=False",
        "actor_rollout_ref.actor.strategy=fsdp2",
        "critic.strategy=fsdp",
        "actor_rollout_ref.rollout.mode=async",
        "actor_rollout_ref.rollout.calculate_log_probs=True",
        "actor_rollout_ref.rollout.load_format=dummy",
        "data.filter_overlong_prompts_workers=64",
        "trainer.max_critic_ckpt_to_keep=3",
        "trainer.default_hdfs_dir=null",
        "trainer.ray_wait_register_center_timeout=300",
        "actor_rollout_ref.nccl_timeout=600",
        "actor_rollout_ref.actor.checkpoint.save_contents=['model','optimizer']",
        "critic.checkpoint.async_save=False",
        "data.image_key=images",
        "data.dataloader_num_workers=8",
        "actor_rollout_ref.rollout.dtype=bfloat16",
        "actor_rollout_ref.hybrid_engine=True",
        "data.val_batch_size=512",
        "actor_rollout_ref.actor.fsdp_config.wrap_policy.min_num_params=0",
        "actor_rollout_ref.actor.ppo_micro_batch_size=8",
        "actor_rollout_ref.rollout.do_sample=True",
        "actor_rollout_ref.rollout.prompt_length=512",
        "actor_rollout_ref.actor.profiler.enable=False",
        "hydra.run.dir=.",
        "reward.sandbox_fusion.url=http://sandbox/run_code",
        "reward.sandbox_fusion.max_concurrent=64",
    ],
)
def test_retired_keys_are_answered_with_one_line(word):
    key = word.partition("=")[0]
    notes = [note for note in load([word]).notes if note.startswith(key + " ")]
    assert len(notes) == 1
    assert notes[0].startswith(f"{key} has no job here: ")


@pytest.mark.parametrize(
    ("word", "cure"),
    [
        ("actor_rollout_ref.actor.strategy=megatron", "FSDP2 alone"),
        ("critic.strategy=megatron", "FSDP2 alone"),
        ("trainer.default_hdfs_dir=hdfs://x", "trainer.default_local_dir"),
        ("actor_rollout_ref.rollout.response_length=1024", "must be data.max_response_length (512)"),
        ("actor_rollout_ref.rollout.do_sample=False", "val_kwargs.do_sample"),
        ("actor_rollout_ref.actor.megatron.tensor_model_parallel_size=1", "FSDP2"),
    ],
)
def test_retired_keys_with_a_value_that_would_matter(word, cure):
    problem = refused(word)
    assert problem.field == word.partition("=")[0]
    assert cure in problem.cure


@pytest.mark.parametrize(
    ("off", "on"),
    [
        ("actor_rollout_ref.rollout.multi_turn.enable=False", "True"),
        ("actor_rollout_ref.model.lora_rank=0", "32"),
        ("reward_model.enable=False", "True"),
        ("reward.reward_model.enable=False", "True"),
        ("actor_rollout_ref.actor.ulysses_sequence_parallel_size=1", "2"),
        ("critic.ulysses_sequence_parallel_size=1", "2"),
        ("algorithm.rollout_is=null", "True"),
        ("algorithm.rollout_correction.loss_type=ppo_clip", "reinforce"),
        ("algorithm.rollout_correction.use_policy_gradient=False", "True"),
        ("actor_rollout_ref.rollout.agent.default_agent_loop=single_turn_agent", "tool_agent"),
    ],
)
def test_planned_keys_pass_when_off_and_are_problems_when_on(off, on):
    key = off.partition("=")[0]
    assert [note for note in load([off]).notes if note.startswith(f"{key}=") and "this version has no" in note]
    assert refused(f"{key}={on}").cure.startswith("this version of Laurel does not do ")


def test_details_of_planned_keys_pass_on_their_own():
    loaded = load(["actor_rollout_ref.model.lora_alpha=16", "actor_rollout_ref.rollout.multi_turn.format=hermes"])
    assert "actor_rollout_ref.model.lora_alpha has no job here: this version has no LoRA" in loaded.notes
    assert loaded.given == frozenset()


def test_zero_is_not_false():
    assert refused("actor_rollout_ref.actor.ulysses_sequence_parallel_size=True").value is True


@pytest.mark.parametrize(
    ("word", "key", "value"),
    [
        ("custom_reward_function.path=r.py", "reward.custom_reward_function.path", "r.py"),
        ("custom_reward_function.reward_kwargs.a=1", "reward.reward_kwargs", {"a": 1}),
        ("custom_reward_function.reward_kwargs={a: 1}", "reward.reward_kwargs", {"a": 1}),
        ("+reward_model.reward_kwargs.a.b=1", "reward.reward_kwargs", {"a": {"b": 1}}),
        ("reward_model.reward_manager=dapo", "reward.reward_manager.name", "dapo"),
        (
            "+reward_model.overlong_buffer.len=4",
            "reward.reward_kwargs",
            {"overlong_buffer_cfg": {"len": 4}},
        ),
        ("actor_rollout_ref.actor.grad_clip=0.5", "actor_rollout_ref.actor.optim.clip_grad", 0.5),
        ("critic.grad_clip=2", "critic.optim.clip_grad", 2.0),
        (
            "actor_rollout_ref.rollout.enforce_eager=False",
            "actor_rollout_ref.rollout.engine_kwargs",
            {"vllm": {"enforce_eager": False}},
        ),
        ("critic.model.fsdp_config.fsdp_size=1", "critic.fsdp_config.fsdp_size", 1),
    ],
)
def test_moved_keys_are_read_under_their_new_name(word, key, value):
    loaded = load([word])
    found = loaded.config
    for name in key.split("."):
        found = getattr(found, name)
    assert found == value
    assert loaded.given == {key}
    assert any("and is read as that" in note for note in loaded.notes)


def test_other_spellings_of_a_choice():
    loaded = load(["actor_rollout_ref.actor.use_kl_loss=True", "actor_rollout_ref.actor.kl_loss_type=k3"])
    assert loaded.config.actor_rollout_ref.actor.kl_loss_type == "low_var_kl"
    assert any("is written low_var_kl here" in note for note in loaded.notes)


@pytest.mark.parametrize(
    ("word", "read"),
    [
        ("algorithm.adv_estimator=grpo_vectorized", "grpo"),
        ("algorithm.adv_estimator=tir_optimal_token_baseline", "optimal_token_baseline"),
        ("algorithm.kl_penalty=k3+", "low_var_kl"),
        ("actor_rollout_ref.actor.kl_loss_type=k3+", "low_var_kl+"),
        ("actor_rollout_ref.actor.kl_loss_type=k2+", "mse"),
        ("reward.reward_manager.name=gdpo", "naive"),
    ],
)
def test_each_other_spelling_is_said(word, read):
    assert f"{word} is written {read} here, and is read as that" in load([word]).notes


def test_a_reset_retired_key_is_nothing():
    assert load(["trainer.balance_batch=True", "~trainer.balance_batch"]).notes == load([]).notes


def test_nothing_outside_the_tree_hides_a_key_of_the_tree():
    hidden = [(key, pattern) for key in leaves() for pattern in PATTERNS if fnmatchcase(key, pattern)]
    assert hidden == []
    assert [old for old in moved.MOVED if old in leaves() or old.removesuffix(".*") in sections()] == []


def test_moved_keys_lead_into_the_tree():
    for new in moved.MOVED.values():
        assert leaf_of(new.removesuffix(".*")) is not None or new.removesuffix(".*") in sections(), new


def test_each_pattern_stands_once():
    assert len(PATTERNS) == len(set(PATTERNS))


def test_keys_that_must_repeat_another_name_a_key_of_the_tree():
    assert {row.equals for row in RETIRED if row.equals} <= set(leaves())
