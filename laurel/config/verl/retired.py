"""Keys of verl that have no job here. Accepted, and answered with one line that says why nothing needs them.

They stand outside the tree. A pattern's ``*`` stands for anything, dots included. What users may miss because this
version cannot do it is in planned.py; what only has another name here, in moved.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

ANY = ("any value",)

ROLES = ("actor_rollout_ref.actor.", "actor_rollout_ref.ref.", "critic.")
MODELS = ("actor_rollout_ref.model.", "critic.model.")
ACTOR, ROLLOUT, REF, CRITIC = *ROLES[:1], "actor_rollout_ref.rollout.", *ROLES[1:]


@dataclass(frozen=True)
class Retired:
    """``only`` are the values that change nothing (else ``cure`` is said), ``equals`` a key that it must repeat."""

    patterns: tuple[str, ...]
    why: str
    only: tuple[Any, ...] = ANY
    equals: str | None = None
    cure: str = ""


def _each(prefixes: tuple[str, ...], *names: str) -> tuple[str, ...]:
    return tuple(prefix + name for prefix in prefixes for name in names)


def _fsdp(*names: str) -> tuple[str, ...]:
    return _each(ROLES, *(f"fsdp_config.{name}" for name in names))


PACKED = "batches are always packed without padding"
BUDGET = "forwards are packed by a token budget, and their size changes no result"
ONE_DTYPE = "weights are bf16 with fp32 masters on a GPU and fp32 on a CPU"
ENTROPY = "entropy is always taken in chunks, without the whole logits"
PROFILING = "each step's times are logged as timing_s/*"

RETIRED: tuple[Retired, ...] = (
    # data
    Retired(("data.return_*",), "prompts always keep what later stages need"),
    Retired(
        ("data.tokenizer",),
        "the tokenizer is the model's",
        only=(None,),
        cure="set actor_rollout_ref.model.tokenizer_path",
    ),
    Retired(("data.use_shm", *_each(MODELS, "use_shm")), "files are read through the page cache"),
    Retired(("data.val_batch_size", "data.validation_shuffle"), "validation always takes every row at once"),
    Retired(
        ("data.filter_overlong_prompts_workers", "data.dataloader_num_workers"), "prompts are tokenized once and cached"
    ),
    Retired(("data.image_key", "data.video_key", "data.audio_key", "data.image_patch_size"), "only text is read"),
    Retired(("data.trust_remote_code",), "actor_rollout_ref.model.trust_remote_code decides it"),
    # model
    Retired(_each((*MODELS, ACTOR), "use_remove_padding"), PACKED),
    Retired(
        _each((*MODELS, ACTOR), "use_fused_kernels", "fused_kernel_options.*", "use_liger", "tiled_mlp.*"),
        "log-probabilities always come from a chunked head that never holds the whole logits",
    ),
    Retired(_each(MODELS, "external_lib"), "no plug-in module is imported", only=(None,), cure="use trust_remote_code"),
    Retired(_each(MODELS, "hf_config_path"), "the config is the model's", only=(None,), cure="set override_config"),
    Retired(
        ("actor_rollout_ref.hybrid_engine",), "learner and engine share a process", only=(True,), cure="leave it out"
    ),
    Retired(
        ("actor_rollout_ref.nccl_timeout",), "waits have deadlines of their own, such as trainer.placement_timeout"
    ),
    # learner
    Retired(
        _each(ROLES, "strategy"),
        "learners are FSDP2 wherever there is more than one rank",
        only=("fsdp", "fsdp2"),
        cure="this version trains with FSDP2 alone; use fsdp2 or leave it out",
    ),
    Retired(
        _each(ROLES, "use_torch_compile", "fsdp_config.use_torch_compile"), "compiling is not a choice of the user"
    ),
    Retired(
        _each(ROLES, "entropy_from_logits_with_chunking", "entropy_checkpointing")
        + _fsdp("entropy_from_logits_with_chunking", "entropy_checkpointing"),
        ENTROPY,
    ),
    Retired((ACTOR + "calculate_entropy",), "entropy is always reported"),
    Retired(
        (ACTOR + "calculate_sum_pi_squared", ACTOR + "sum_pi_squared_checkpointing"),
        "algorithm.adv_estimator=optimal_token_baseline always gets what it needs",
    ),
    Retired(
        _each(ROLES, "checkpoint.*"),
        "one checkpoint holds everything; `laurel export` makes a Hugging Face folder of it",
    ),
    Retired(_each((ACTOR, CRITIC), "ppo_micro_batch_size"), BUDGET),
    Retired(
        (
            ROLLOUT + "log_prob_micro_batch_size",
            ROLLOUT + "micro_batch_size",
            REF + "log_prob_micro_batch_size",
            REF + "ppo_micro_batch_size",
            CRITIC + "forward_micro_batch_size*",
            CRITIC + "forward_max_token_len_per_gpu",
        ),
        BUDGET,
    ),
    Retired(_each((ACTOR, CRITIC), "data_loader_seed"), "trainer.seed and data.seed decide all order"),
    Retired((CRITIC + "shuffle",), "the critic sees the mini-batches of the actor, by actor_rollout_ref.actor.shuffle"),
    Retired(_each((ACTOR, CRITIC), "rollout_n"), "actor_rollout_ref.rollout.n decides it", equals=ROLLOUT + "n"),
    Retired(
        _each((ACTOR, CRITIC), "optim.total_training_steps"), "the schedule's length follows from the training steps"
    ),
    Retired(
        _each((ACTOR, CRITIC), "optim.optimizer"),
        "the optimizer is AdamW",
        only=("AdamW", "adamw", "adam"),
        cure="use AdamW",
    ),
    Retired(
        _each((ACTOR, CRITIC), "optim.optimizer_impl", "optim.override_optimizer_config*", "optim.zero_indexed_step"),
        "the optimizer is our own AdamW with fp32 masters",
    ),
    Retired(
        _each((ACTOR, CRITIC), "optim.num_cycles"), "a cosine schedule is half a wave", only=(0.5,), cure="leave it out"
    ),
    Retired(_fsdp("wrap_policy.*"), "each layer is a unit of its own"),
    Retired(_fsdp("forward_prefetch", "use_orig_params", "forward_only", "strategy"), "FSDP2 sees to it"),
    Retired(_fsdp("model_dtype", "dtype", "mixed_precision*"), ONE_DTYPE),
    Retired(
        _fsdp("offload_policy"),
        "param_offload and optimizer_offload say it",
        only=(False,),
        cure="set param_offload=True",
    ),
    Retired(_fsdp("seed", "full_determinism"), "runs are deterministic by trainer.seed and data.seed"),
    Retired(
        (
            "*.profiler.*",
            "global_profiler.*",
            "trainer.profile_steps",
            "trainer.*_nsight_options*",
            "trainer.npu_profile*",
        ),
        PROFILING,
    ),
    # rollout
    Retired((ROLLOUT + "mode",), "engines always take requests one by one and asynchronously"),
    Retired(
        (ROLLOUT + "calculate_log_probs", ROLLOUT + "logprobs_mode"), "the engine always reports log-probabilities"
    ),
    Retired(
        (
            ROLLOUT + "load_format",
            ROLLOUT + "layer_name_map*",
            ROLLOUT + "layered_summon",
            ROLLOUT + "skip_tokenizer_init",
            ROLLOUT + "update_weights_bucket_megabytes",
            ROLLOUT + "checkpoint_engine.*",
        ),
        "the learner hands its weights to the engine",
    ),
    Retired((ROLLOUT + "dtype",), ONE_DTYPE),
    Retired(
        (
            ROLLOUT + "cudagraph_capture_sizes",
            ROLLOUT + "multi_stage_wake_up",
            ROLLOUT + "scheduling_policy",
        ),
        "the engine schedules its forwards itself",
    ),
    Retired((ROLLOUT + "disable_log_stats", ROLLOUT + "prometheus.*"), "the engine's numbers are among the metrics"),
    Retired(
        (ROLLOUT + "do_sample",),
        "training always samples",
        only=(True,),
        cure="leave it out; for validation, set val_kwargs.do_sample",
    ),
    Retired((ROLLOUT + "prompt_length",), "data.max_prompt_length says it", equals="data.max_prompt_length"),
    Retired((ROLLOUT + "response_length",), "data.max_response_length says it", equals="data.max_response_length"),
    Retired(
        (
            ROLLOUT + "agent.num_workers",
            "reward_model.launch_reward_fn_async",
        ),
        "each trajectory is scored as it arrives, while others are still sampled",
    ),
    Retired(("reward.sandbox_fusion.*",), "code is run in a sandbox on this machine, which needs no service"),
    Retired((ROLLOUT + "limit_images",), "only text is read"),
    Retired(
        (ROLLOUT + "trace.*",), "samples are kept as files: trainer.rollout_data_dir and trainer.validation_data_dir"
    ),
    # trainer
    Retired(("trainer.balance_batch",), "batches are always balanced over ranks by their tokens"),
    Retired(
        ("trainer.default_hdfs_dir",),
        "checkpoints go to trainer.default_local_dir",
        only=(None,),
        cure="nothing is copied to HDFS; set trainer.default_local_dir to a mounted folder and leave this null",
    ),
    Retired(
        ("trainer.max_critic_ckpt_to_keep",),
        "one checkpoint holds actor and critic; see trainer.max_actor_ckpt_to_keep",
    ),
    Retired(
        ("trainer.del_local_ckpt_after_load", "trainer.remove_previous_ckpt_in_save"),
        "checkpoints are kept",
        only=(False,),
        cure="set trainer.max_actor_ckpt_to_keep=1 to keep one",
    ),
    Retired(("trainer.ray_wait_register_center_timeout",), "trainer.placement_timeout is the deadline"),
    Retired(
        ("trainer.esi_redundant_time", "trainer.use_legacy_worker_impl", "trainer.wandb_proxy", "model_engine"),
        "nothing here works that way",
    ),
    Retired(("ray_kwargs.timeline_json_file",), "no timeline is written", only=(None,), cure="use `ray timeline`"),
    Retired(("hydra.*",), "Hydra is not used; logs and samples lie in trainer.default_local_dir"),
)
