"""What users of verl know and this version does not do yet: accepted when switched off, else a problem with a cure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from laurel.config.verl.retired import ACTOR, ANY, CRITIC, MODELS, REF, ROLES, ROLLOUT


@dataclass(frozen=True)
class Planned:
    """``off`` are the values under which nothing is missing; () refuses every value, ANY reads the key as a detail."""

    patterns: tuple[str, ...]
    what: str
    off: tuple[Any, ...]
    cure: str


def _details(*patterns: str, of: str) -> Planned:
    """Settings that only matter when ``of`` is on, which is refused on its own."""
    return Planned(patterns, of, ANY, "")


SEQUENCE = "sequence parallelism"
LORA = "LoRA"
TURNS = "several turns and tools"
REWARD_MODEL = "reward models"
MEGATRON = "Megatron"

PLANNED: tuple[Planned, ...] = (
    Planned((ROLLOUT + "multi_turn.enable",), TURNS, (False, None), f"set {ROLLOUT}multi_turn.enable=False"),
    _details(ROLLOUT + "multi_turn.*", of=TURNS),
    Planned((ROLLOUT + "agent.default_agent_loop",), TURNS, ("single_turn_agent", None), "use single_turn_agent"),
    Planned(
        (ROLLOUT + "agent.agent_loop_config_path", ROLLOUT + "agent.custom_*", "data.tool_config_path"),
        TURNS,
        (None,),
        "leave it out",
    ),
    _details(ROLLOUT + "agent.*", of=TURNS),
    Planned(
        (*(model + "lora_rank" for model in MODELS), *(model + "lora.rank" for model in MODELS)),
        LORA,
        (0, None),
        "set it to 0",
    ),
    Planned(tuple(model + "lora_adapter_path" for model in MODELS), LORA, (None,), "leave it out"),
    _details(
        *(
            model + name
            for model in MODELS
            for name in ("lora_alpha", "target_modules", "target_parameters", "exclude_modules", "lora.*")
        ),
        of=LORA,
    ),
    Planned(
        ("reward_model.enable", "reward.reward_model.enable"),
        REWARD_MODEL,
        (False, None),
        "set it to False and score with a reward function (reward.custom_reward_function.path)",
    ),
    _details("reward_model.*", "reward.reward_model.*", of=REWARD_MODEL),
    Planned(
        ("algorithm.rollout_is",),
        "rollout correction by its older keys",
        (False, None),
        "use algorithm.rollout_correction.rollout_is=token or sequence",
    ),
    _details("algorithm.rollout_is_*", of="rollout correction by its older keys"),
    Planned(
        ("algorithm.rollout_correction.loss_type",),
        "REINFORCE under bypass_mode",
        ("ppo_clip", None),
        f"leave it out; {ACTOR}policy_loss.loss_mode=cispo is that, with clipped weights",
    ),
    Planned(
        (
            "algorithm.rollout_correction.use_policy_gradient",
            "algorithm.rollout_correction.use_pure_rollout_correction",
            "algorithm.rollout_correction.debug_rollout_actor_probs",
        ),
        "that part of the rollout correction",
        (False, None),
        "leave it out",
    ),
    Planned(("algorithm.use_pf_ppo",), "PF-PPO", (False,), "set algorithm.use_pf_ppo=False"),
    _details("algorithm.pf_ppo.*", of="PF-PPO"),
    Planned(
        (
            *(role + "ulysses_sequence_parallel_size" for role in ROLES),
            *(role + "fsdp_config.ulysses_sequence_parallel_size" for role in ROLES),
        ),
        SEQUENCE,
        (1,),
        "set it to 1",
    ),
    Planned(
        (ROLLOUT + "data_parallel_size", ROLLOUT + "expert_parallel_size", ROLLOUT + "pipeline_model_parallel_size"),
        "engines over several GPUs",
        (1,),
        "set it to 1; every rank runs an engine of its own",
    ),
    Planned((ROLLOUT + "skip_rollout", ROLLOUT + "skip.enable"), "replaying kept samples", (False,), "leave it out"),
    _details(ROLLOUT + "skip_dump_dir", ROLLOUT + "skip.*", of="replaying kept samples"),
    Planned((ROLLOUT + "over_sample_rate",), "over-sampling", (0, None), "set it to 0"),
    Planned((ROLLOUT + "quantization*",), "quantized engines", (None,), "leave it out"),
    Planned((ROLLOUT + "enable_rollout_routing_replay",), "routing replay", (False,), "set it to False"),
    Planned((ACTOR + "router_replay.mode",), "routing replay", ("disabled", None), "leave it out"),
    _details(ACTOR + "router_replay.*", of="routing replay"),
    Planned((ACTOR + "freeze_vision_tower",), "vision models", (False,), "leave it out"),
    Planned(
        tuple(model + "enable_activation_offload" for model in MODELS),
        "activation offload",
        (False,),
        "set it to False; enable_gradient_checkpointing=True saves the same memory by recomputing",
    ),
    Planned(tuple(model + "mtp.*" for model in MODELS), "multi-token prediction", (False, None, 0), "leave it out"),
    Planned(
        (REF + "model", REF + "model.*"), "a reference other than the actor's first weights", (None,), "leave it out"
    ),
    Planned(
        (ACTOR + "megatron.*", REF + "megatron.*", CRITIC + "megatron.*"), MEGATRON, (), "leave it out; FSDP2 does it"
    ),
    Planned(
        ("data.custom_cls.path", "data.custom_cls.name"),
        "data set classes of your own",
        (None,),
        "leave it out and write parquet or jsonl files with the columns of `laurel data`",
    ),
    Planned(
        ("data.sampler.class_path", "data.sampler.class_name", "data.datagen.path", "data.datagen.name"),
        "samplers of your own",
        (None,),
        "leave it out; data.shuffle and data.seed decide the order",
    ),
    Planned(("reward.reward_manager.source",), "reward managers of your own", ("register", None), "leave it out"),
    Planned(("reward.reward_manager.module.*",), "reward managers of your own", (None,), "leave it out"),
    Planned(("transfer_queue.enable",), "the transfer queue", (False,), "leave it out"),
    _details("transfer_queue.*", of="the transfer queue"),
)
