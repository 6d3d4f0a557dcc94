"""How much memory a run needs per rank, estimated from a model's config.json. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from laurel.config.tree import Config, Fsdp, Model
from laurel.models.hub import published_config

GIB = 2**30


@dataclass(frozen=True)
class Shape:
    """What a config.json says of a decoder's size. ``cache_per_token`` counts the numbers of all keys and values."""

    parameters: int
    cache_per_token: int


def shape_of(model: Model) -> Shape | None:
    """The size of a Llama-like model on this machine; None for one not fetched yet, or without the usual fields."""
    try:
        published = published_config(model)
        return None if published is None else _shape({**published, **model.override_config})
    except (OSError, ValueError, KeyError):
        return None


def _shape(fields: Mapping[str, Any]) -> Shape:
    hidden, layers, heads = fields["hidden_size"], fields["num_hidden_layers"], fields["num_attention_heads"]
    kv_heads = fields.get("num_key_value_heads") or heads
    head = fields.get("head_dim") or hidden // heads
    attention = 2 * hidden * head * (heads + kv_heads)
    layer = attention + 3 * hidden * fields["intermediate_size"] + 2 * hidden
    embeddings = fields["vocab_size"] * hidden * (1 if fields.get("tie_word_embeddings", False) else 2)
    return Shape(embeddings + layers * layer + hidden, 2 * layers * kv_heads * head)


@dataclass(frozen=True)
class Memory:
    """Bytes per rank: fixed ``parts`` by name, and a KV cache for at most ``cached`` tokens."""

    parts: Mapping[str, float]
    cache_per_token: float
    cached: int

    @property
    def total(self) -> float:
        return sum(self.parts.values())


def estimate(config: Config) -> Memory | None:
    """Weights, gradients and optimizer state of every role on one rank; None if a config.json cannot be read.

    On a GPU weights and gradients are bf16 with an fp32 master and two fp32 moments; on a CPU all is fp32, without a
    separate master.
    """
    part, trainer = config.actor_rollout_ref, config.trainer
    ranks = trainer.nnodes * (trainer.n_gpus_per_node or 1)
    shape, critic = shape_of(part.model), shape_of(config.critic.model)
    if shape is None or (config.critic.enable and critic is None):
        return None
    weight = 4 if trainer.device == "cpu" else 2
    trained = 4 + 4 + 8 if trainer.device == "cpu" else 2 + 2 + 4 + 8
    parts = {"actor": shape.parameters * trained / _sharing(part.actor.fsdp_config, ranks)}
    if ranks > 1:
        parts["engine's copy"] = float(shape.parameters * weight)
    if config.needs_reference:
        parts["reference"] = shape.parameters * weight / _sharing(part.ref.fsdp_config, ranks)
    if config.critic.enable and critic is not None:
        parts["critic"] = critic.parameters * trained / _sharing(config.critic.fsdp_config, ranks)
    rows = -(-config.prompts_at_once * part.rollout.n // ranks)
    slots = min(rows, part.rollout.max_num_seqs or rows)
    return Memory(parts, float(shape.cache_per_token * weight), slots * (part.rollout.max_model_len or 0))


def _sharing(fsdp: Fsdp, ranks: int) -> int:
    return ranks if fsdp.fsdp_size < 1 else min(fsdp.fsdp_size, ranks)
