"""The engine of one rank, made as the configuration asks for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from laurel.config.machine import available_memory
from laurel.config.tree import Config, Rollout
from laurel.models.decoder import NotServed, refuse
from laurel.models.hub import fetch
from laurel.models.memory import Serving, Shape, logits_of_a_slot, prefill_bytes, serving, usable
from laurel.models.slots import cache_shape, published_shape
from laurel.models.tokenizer import load_tokenizer, stop_token_ids
from laurel.rollout.native.engine import NativeEngine
from laurel.rollout.vllm.arguments import engine_arguments
from laurel.rollout.vllm.engine import VllmEngine
from laurel.types import LaurelError
from laurel.weights.buckets import buckets, named_weights, tied_names

# Beyond it a longer batch makes a decoding step longer in proportion, so nothing is gained.
_MOST_SLOTS = 256
_MOST_VLLM_SEQS = 1024  # vLLM schedules in Python, and captures graphs of up to 512
_VLLM_BLOCK = 128  # tokens of a KV block on a CPU
_FEWEST_WANTED = 64  # validation may have more prompts than a small training batch
_CPU_MEMORY = 0.25  # of what is free, for the KV caches of all ranks of a machine
_PREFILL_TOKEN = 128  # numbers that a prompt token takes in a forward of unknown layers, in hidden states


def build_engine(
    config: Config,
    module: nn.Module,
    *,
    device: torch.device,
    world: int,
    dtype: torch.dtype | None = None,
    sequences: int | None = None,
) -> NativeEngine | VllmEngine:
    """The engine of this rank, for ``module``: a causal language model, which the native engine runs.

    A vLLM engine has tensors of its own in ``dtype``; None is the module's. ``sequences``: the most that it is asked
    for at once; None is this rank's part of a training batch.
    """
    rollout = config.actor_rollout_ref.rollout
    max_len = rollout.max_model_len or config.data.max_prompt_length + config.data.max_response_length
    sequences = sequences or -(-config.prompts_at_once * rollout.n // world)
    if rollout.name == "native":
        return _native(config, module, device=device, sequences=sequences, max_len=max_len)
    if rollout.name == "vllm":
        dtype = dtype or next(module.parameters()).dtype
        return _vllm(config, module, device=device, world=world, dtype=dtype, sequences=sequences, max_len=max_len)
    raise LaurelError(f"rollout.name={rollout.name}: this version runs rollout.name=native and vllm")


def _native(config: Config, module: nn.Module, *, device: torch.device, sequences: int, max_len: int) -> NativeEngine:
    rollout = config.actor_rollout_ref.rollout
    if device.type == "cuda":
        logits = logits_of_a_slot(rollout, validates=bool(config.data.val_files))
        served = serving_on_gpu(rollout, module, device=device, sequences=sequences, max_len=max_len, logits=logits)
    else:
        cache_shape(module, max_len)  # refuses a model that it cannot serve
        slots = _cpu_slots(config, module, next(module.parameters()).dtype, sequences=sequences, max_len=max_len)
        served = Serving(slots, slots * max_len)
    return NativeEngine(
        module,
        max_slots=served.slots,
        max_len=max_len,
        stop_token_ids=_stops(config, module),
        prefill_tokens=rollout.max_num_batched_tokens,
        cache_tokens=served.cache_tokens,
        dtype=next(module.parameters()).dtype,
        device=device,
    )


def _vllm(
    config: Config,
    module: nn.Module,
    *,
    device: torch.device,
    world: int,
    dtype: torch.dtype,
    sequences: int,
    max_len: int,
) -> VllmEngine:
    """``module`` is the learner's, of which only names and shapes are taken; its tensors may be sharded."""
    model = config.actor_rollout_ref.model
    cache_bytes = None
    slots = config.actor_rollout_ref.rollout.max_num_seqs or min(max(sequences, _FEWEST_WANTED), _MOST_VLLM_SEQS)
    if device.type == "cpu":
        slots = _cpu_slots(config, module, dtype, sequences=sequences, max_len=max_len)
        blocks = -(-max_len // _VLLM_BLOCK) + 1
        cache_bytes = (slots * blocks + 1) * _VLLM_BLOCK * published_shape(module.config).bytes_per_token(dtype)
    arguments = engine_arguments(
        config,
        folder=fetch(model),
        dtype=str(dtype).removeprefix("torch."),
        max_len=max_len,
        max_seqs=slots,
        cache_bytes=cache_bytes,
    )
    return VllmEngine(
        arguments,
        shapes={name: tuple(one.shape) for name, one in named_weights(module).items()},
        tied=tied_names(module),
        stop_token_ids=_stops(config, module),
        max_len=max_len,
        device=device,
        # Shards of several ranks are gathered by all of them together, which one that lost its engine cannot ask for
        resend=(lambda: buckets(module, dtype=dtype, device=device)) if world == 1 else None,
    )


def _cpu_slots(config: Config, module: nn.Module, dtype: torch.dtype, *, sequences: int, max_len: int) -> int:
    return config.actor_rollout_ref.rollout.max_num_seqs or slots_for(
        trajectories=sequences,
        slot_bytes=published_shape(module.config).bytes_per_token(dtype) * max_len,
        memory=cpu_cache_memory(config.trainer.n_gpus_per_node or 1),
    )


def _stops(config: Config, module: nn.Module) -> tuple[int, ...]:
    generation = getattr(module, "generation_config", None)
    return stop_token_ids(module.config, generation, load_tokenizer(config.actor_rollout_ref.model))


def serving_on_gpu(
    rollout: Rollout, module: nn.Module, *, device: torch.device, sequences: int, max_len: int, logits: float
) -> Serving:
    """Slots and cache for what the GPU has left when everything else is loaded; ``logits`` rows for each slot."""
    model: Any = module
    parameters = list(module.parameters())
    return serving(
        memory=gpu_cache_memory(
            device,
            share=rollout.gpu_memory_utilization,
            weights=sum(one.numel() * one.element_size() for one in parameters),
        ),
        sequences=sequences,
        max_len=max_len,
        max_slots=rollout.max_num_seqs,
        token_bytes=cache_shape(module, max_len).bytes_per_token(parameters[0].dtype),
        vocabulary=model.config.vocab_size,
        logits=logits,
        prefill=_prefill(model.config.to_dict(), rollout.max_num_batched_tokens),
        paged=_has_pages(module),
    )


def _prefill(fields: Mapping[str, Any], tokens: int) -> float:
    try:
        return prefill_bytes(Shape.of(fields), tokens)
    except (KeyError, ValueError):
        return float(2 * _PREFILL_TOKEN * fields["hidden_size"] * tokens)


def _has_pages(module: nn.Module) -> bool:
    try:
        refuse(module.base_model)
    except NotServed:
        return False
    return True


def slots_for(*, trajectories: int, slot_bytes: int, memory: int) -> int:
    """Sequences decoded at once on a CPU: this rank's part of a step's batch, within memory. At least 1.

    Example: 256 trajectories, 1 MiB a slot, 100 MiB of memory: 100 slots.
    """
    return max(1, min(max(trajectories, _FEWEST_WANTED), memory // slot_bytes, _MOST_SLOTS))


def gpu_cache_memory(device: torch.device, *, share: float, weights: int) -> float:
    """Bytes that sampling may take beside what is loaded: ``share`` of the GPU counts the engine's own ``weights``."""
    free = torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device)
    return min(usable(free) - torch.cuda.memory_allocated(device), share * free - weights)


def cpu_cache_memory(ranks_here: int) -> int:
    """Bytes that this rank's KV cache may take: its part of what the machine has free."""
    return int(_CPU_MEMORY * available_memory()) // ranks_here
