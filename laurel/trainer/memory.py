"""How much memory each phase of a run takes on one rank, predicted from settings and config.json. Imports no torch.

A phase is a list of named parts. What every phase holds (weights, masters, moments) comes first, then what is its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from laurel.config.estimators import ESTIMATORS
from laurel.config.tree import Actor, Config, Critic, Fsdp, Model, Ref, Rollout
from laurel.models.hub import published_config
from laurel.models.memory import (
    GIB,
    Serving,
    Shape,
    Tokens,
    forward_parts,
    logits_of_a_slot,
    prefill_bytes,
    serving_bytes,
    update_parts,
)

Parts = dict[str, float]
Role = Literal["actor", "critic"]
OFFLOAD_PART = GIB
"""Masters and moments are brought to the GPU in parts of about so many bytes, when they lie in CPU memory."""


@dataclass(frozen=True)
class Models:
    """Shapes of the actor and of the critic, if there is one."""

    actor: Shape
    critic: Shape | None = None


def models_of(config: Config) -> Models | None:
    """None if a model is not on this machine yet, or is of a kind whose size is not known."""
    actor = shape_of(config.actor_rollout_ref.model)
    critic = shape_of(config.critic.model) if config.critic.enable else None
    return None if actor is None or (config.critic.enable and critic is None) else Models(actor, critic)


def shape_of(model: Model) -> Shape | None:
    try:
        published = published_config(model)
        return None if published is None else Shape.of({**published, **model.override_config})
    except (OSError, ValueError, KeyError):
        return None


@dataclass(frozen=True)
class Phase:
    """What one rank holds at the fullest moment of a phase: bytes by name."""

    name: str
    parts: Mapping[str, float]

    @property
    def peak(self) -> float:
        return sum(self.parts.values())


def listed(parts: Mapping[str, float], digits: int = 2) -> str:
    """Example: ``actor's weights 0.92, KV cache 7.50``, in GiB."""
    return ", ".join(f"{name} {size / GIB:.{digits}f}" for name, size in parts.items())


def ranks_of(config: Config) -> int:
    return config.trainer.nnodes * (config.trainer.n_gpus_per_node or 1)


def sharing(fsdp: Fsdp, ranks: int) -> int:
    """Ranks that share one copy of the parameters."""
    return ranks if fsdp.fsdp_size < 1 else min(fsdp.fsdp_size, ranks)


# --- what is always there ---------------------------------------------------------------------------------------------


def resident(config: Config, models: Models) -> Parts:
    """Weights, masters and moments of every role.

    One rank computes with bf16 weights (2 bytes) that the engine shares, beside float32 masters (4) and two moments
    (8). Several share float32 masters and moments, and each engine has a bf16 copy of its own. A CPU computes with the
    float32 masters, and its gradients (4) are counted here.
    """
    part, ranks, on_cpu = config.actor_rollout_ref, ranks_of(config), config.trainer.device == "cpu"
    parts = _trained("actor", models.actor.parameters, part.actor.fsdp_config, ranks, on_cpu)
    if ranks > 1:
        parts["engine's weights"] = models.actor.parameters * (4.0 if on_cpu else 2.0)
    if config.needs_reference and not (ranks > 1 and part.ref.fsdp_config.param_offload):
        weight = 4.0 if on_cpu else 2.0
        parts["reference"] = models.actor.parameters * weight / sharing(part.ref.fsdp_config, ranks)
    if models.critic is not None:
        count = models.critic.backbone + models.critic.hidden + 1
        parts |= _trained("critic", count, config.critic.fsdp_config, ranks, on_cpu)
    return parts


def _trained(role: Role, parameters: int, fsdp: Fsdp, ranks: int, on_cpu: bool) -> Parts:
    own = float(parameters) / sharing(fsdp, ranks)
    if on_cpu:
        return {f"{role}'s weights and gradients": 8 * own, f"{role}'s moments": 8 * own}
    if ranks > 1 and fsdp.param_offload:
        return {}
    parts = {f"{role}'s weights": 2 * own} if ranks == 1 else {f"{role}'s masters": 4 * own}
    if not fsdp.optimizer_offload:
        parts |= {f"{role}'s masters and moments": 12 * own} if ranks == 1 else {f"{role}'s moments": 8 * own}
    return parts


# --- phases -----------------------------------------------------------------------------------------------------------


def phases(config: Config, models: Models, serving: Serving, *, keep: int = 0, longest: bool = False) -> list[Phase]:
    """The phases of a step in their order, for settings without nulls.

    Rows are taken to be as long as the data settings allow, and micro-batches as full as they come. ``longest`` is what
    may still happen: micro-batches full to the last token, with no prompt shared.
    """
    always = resident(config, models)
    kept = {} if config.actor_rollout_ref.rollout.free_cache_engine else cache_parts(config, models, serving)
    found = [Phase("rollout", always | rollout_parts(config, models, serving))]
    if not config.trainer.val_only:
        own = _learning(config, models, keep=keep, longest=longest)
        found += [Phase(name, always | kept | parts) for name, parts in own.items()]
    return found


def cache_parts(config: Config, models: Models, serving: Serving) -> Parts:
    """What an engine that does not free its cache holds on to."""
    parts = rollout_parts(config, models, serving)
    return {"KV cache": parts["KV cache"], "engine's logits": parts["logits"]}


def rollout_parts(config: Config, models: Models, serving: Serving) -> Parts:
    rollout, weight = config.actor_rollout_ref.rollout, 4 if config.trainer.device == "cpu" else 2
    cache = {"KV cache": float(serving.cache_tokens * models.actor.cache_per_token * weight)}
    if config.trainer.device == "cpu":
        return cache
    prefill = prefill_bytes(models.actor, rollout.max_num_batched_tokens)
    longest = longest_sequence(config)
    return cache | serving_bytes(models.actor.vocabulary, logits_rows(config), serving.slots, longest, prefill)


def logits_rows(config: Config) -> float:
    """Rows of logits that the engine holds for each slot."""
    return logits_of_a_slot(config.actor_rollout_ref.rollout, validates=bool(config.data.val_files))


def _learning(config: Config, models: Models, *, keep: int, longest: bool) -> dict[str, Parts]:
    """Each phase of learning with its own parts."""
    part, algorithm = config.actor_rollout_ref, config.algorithm
    shape, critic = models.actor, models.critic
    found: dict[str, Parts] = {}

    def forward(section: Rollout | Ref, fsdp: Fsdp, *, squares: bool = False) -> Parts:
        tokens = forward_tokens(config, section, longest=longest)
        return forward_parts(shape, tokens, squares=squares) | _gathered(shape, fsdp, ranks_of(config))

    squares = ESTIMATORS[algorithm.adv_estimator].reads_logit_grads
    if squares or not (config.ratio_is_one or algorithm.rollout_correction.bypass_mode):
        found["log-probs"] = forward(part.rollout, part.actor.fsdp_config, squares=squares)
    if config.needs_reference:
        found["reference"] = forward(part.ref, part.ref.fsdp_config)
    if critic is not None:
        found["critic's update"] = updating(config, models, "critic", longest=longest)
    found["actor's update"] = updating(config, models, "actor", keep=keep, longest=longest)
    for role in ("actor", *(("critic",) if critic is not None else ())):
        moved = stepping(config, models, role)  # type: ignore[arg-type]
        if moved:
            found[f"{role}'s optimizer step"] = moved
    return found


def updating(config: Config, models: Models, role: Role, *, keep: int = 0, longest: bool = False) -> Parts:
    """What forwards and backwards of an update take: float32 sums of gradients, activations, logits, gathered layers.

    An update of one micro-batch has no sums before its backward pass, which has let go of most when they are there.
    """
    section, shape = _section(config, role), _shape(models, role)
    model = config.actor_rollout_ref.model if role == "actor" else config.critic.model
    ranks = ranks_of(config)
    tokens = forward_tokens(config, section, longest=longest)
    computed = update_parts(
        shape, tokens, recompute=bool(model.enable_gradient_checkpointing), keep=keep, value_model=role == "critic"
    ) | _gathered(shape, section.fsdp_config, ranks, backward=True)
    gradients = gradient_parts(config, models, role)
    if longest or tokens.rows < rows_of_update(config, section) * longest_row(config):
        return gradients | computed
    return max(gradients, computed, key=lambda parts: sum(parts.values()))


def stepping(config: Config, models: Models, role: Role) -> Parts:
    """An optimizer step on masters and moments that lie in CPU memory; nothing if they do not."""
    section, shape = _section(config, role), _shape(models, role)
    if not section.fsdp_config.optimizer_offload:
        return {}
    largest = 12.0 * shape.embedding / sharing(section.fsdp_config, ranks_of(config))
    return gradient_parts(config, models, role) | {"masters and moments in use": max(float(OFFLOAD_PART), largest)}


def gradient_parts(config: Config, models: Models, role: Role) -> Parts:
    shape, fsdp = _shape(models, role), _section(config, role).fsdp_config
    ranks, count = ranks_of(config), shape.parameters if role == "actor" else shape.backbone
    if ranks > 1 and fsdp.param_offload:
        return {}
    return {"gradients": 4.0 * count / sharing(fsdp, ranks)}


def _gathered(shape: Shape, fsdp: Fsdp, ranks: int, *, backward: bool = False) -> Parts:
    """What FSDP gathers in bf16: embedding and head throughout, and layers as they come, the next one beside the one
    that computes. Going back, a layer's gradients are there in bf16 and, to be summed over ranks, in float32."""
    if ranks == 1:
        return {}
    root = 2.0 * (shape.embedding * (1 if shape.tied else 2) + shape.hidden)
    layers = 3 if fsdp.reshard_after_forward else shape.layers + 1
    return {"gathered layers": root + 2.0 * shape.layer * layers + (6.0 * shape.layer if backward else 0)}


# --- how many tokens --------------------------------------------------------------------------------------------------


def longest_row(config: Config) -> int:
    return config.data.max_prompt_length + config.data.max_response_length


def longest_sequence(config: Config) -> int:
    """Of the engine, in tokens."""
    return config.actor_rollout_ref.rollout.max_model_len or longest_row(config)


def rows_of_update(config: Config, section: Actor | Critic | Rollout | Ref) -> int:
    """Trajectories that go through one rank together: of an optimizer update, or of a forward over the batch."""
    prompts = config.data.train_batch_size
    if isinstance(section, Actor | Critic):
        prompts = min(prompts, section.ppo_mini_batch_size or prompts)
    return -(-prompts * config.actor_rollout_ref.rollout.n // ranks_of(config))


def forward_tokens(config: Config, section: Actor | Critic | Rollout | Ref, *, longest: bool = False) -> Tokens:
    """Tokens of the largest micro-batch under a section's budget (see ``phases``). Whole groups of a prompt go together
    where they fit, and the prompt that they share is computed once.

    Example: a budget of 16,384 and groups of 8 with prompts of 128 and responses of 512 tokens: 3 groups, of 15,360
    tokens in rows, 12,672 computed and 12,288 sampled.
    """
    data, n = config.data, config.actor_rollout_ref.rollout.n
    row, here = longest_row(config), rows_of_update(config, section)
    budget, size = budget_of(section)
    if size is None:
        fit = max(1, (budget or row) // row)
        rows = fit // n * n if fit >= n else fit
        most = max(row, budget or row)
    else:
        rows, most = size, size * row
    if longest:
        count = min(most, here * row)
        return Tokens(count, count, count)
    rows = min(rows, here)
    prompts = -(-rows // n)
    sampled = rows * data.max_response_length
    return Tokens(prompts * data.max_prompt_length + sampled, rows * row, sampled)


def budget_of(section: Actor | Critic | Rollout | Ref) -> tuple[int | None, int | None]:
    """Tokens of a forward, or its trajectories where they bound it."""
    if isinstance(section, Actor | Critic):
        size, dynamic, tokens = (
            section.ppo_micro_batch_size_per_gpu,
            section.use_dynamic_bsz,
            section.ppo_max_token_len_per_gpu,
        )
    else:
        size, dynamic, tokens = (
            section.log_prob_micro_batch_size_per_gpu,
            section.log_prob_use_dynamic_bsz,
            section.log_prob_max_token_len_per_gpu,
        )
    return (tokens, None) if dynamic or size is None else (None, size)


def _section(config: Config, role: Role) -> Actor | Critic:
    return config.actor_rollout_ref.actor if role == "actor" else config.critic


def _shape(models: Models, role: Role) -> Shape:
    if role == "actor":
        return models.actor
    assert models.critic is not None
    return models.critic
