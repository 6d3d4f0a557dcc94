"""The engine of one rank, made as the configuration asks for."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from torch import nn

from laurel.config.tree import Config
from laurel.models.slots import cache_shape
from laurel.models.tokenizer import load_tokenizer, stop_token_ids
from laurel.rollout.native.engine import NativeEngine
from laurel.types import LaurelError

# Beyond these a longer batch makes a decoding step longer in proportion, so nothing is gained.
_MOST_SLOTS = {"cpu": 256, "cuda": 1024}
_FEWEST_WANTED = 64  # validation may have more prompts than a small training batch
_CPU_MEMORY = 0.25  # of what is free, for the KV caches of all ranks of a machine


def build_engine(config: Config, module: nn.Module, *, device: torch.device, world: int) -> NativeEngine:
    """The engine of this rank on ``module``, a causal language model in the dtype that it computes in."""
    rollout, model = config.actor_rollout_ref.rollout, config.actor_rollout_ref.model
    if rollout.name != "native":
        raise LaurelError(f"rollout.name={rollout.name}: this version runs rollout.name=native only")
    max_len = rollout.max_model_len or config.data.max_prompt_length + config.data.max_response_length
    dtype = next(module.parameters()).dtype
    slots = rollout.max_num_seqs or slots_for(
        trajectories=-(-config.prompts_at_once * rollout.n // world),
        slot_bytes=cache_shape(module, max_len).bytes_per_token(dtype) * max_len,
        memory=cache_memory(
            device, share=rollout.gpu_memory_utilization, ranks_here=config.trainer.n_gpus_per_node or 1
        ),
        device=device.type,
    )
    generation = getattr(module, "generation_config", None)
    return NativeEngine(
        module,
        max_slots=slots,
        max_len=max_len,
        stop_token_ids=stop_token_ids(module.config, generation, load_tokenizer(model)),
        prefill_tokens=rollout.max_num_batched_tokens,
        dtype=dtype,
        device=device,
    )


def slots_for(*, trajectories: int, slot_bytes: int, memory: int, device: str) -> int:
    """Sequences decoded at once: this rank's part of a step's batch, within memory. At least 1.

    Example: 256 trajectories, 1 MiB a slot, 100 MiB of memory: 100 slots.
    """
    return max(1, min(max(trajectories, _FEWEST_WANTED), memory // slot_bytes, _MOST_SLOTS[device]))


def cache_memory(device: torch.device, *, share: float, ranks_here: int) -> int:
    """Bytes that this rank's KV cache may take: what is left of ``share`` of the GPU, or a part of the free memory."""
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        taken = torch.cuda.memory_allocated(device)
        return max(0, min(int(share * total) - taken, int(0.9 * free)))
    return int(_CPU_MEMORY * available_memory()) // ranks_here


def available_memory(meminfo: Path = Path("/proc/meminfo")) -> int:
    """Bytes that processes may still take, caches that the system would drop included; half of all where unknown."""
    try:
        fields = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
        return int(fields["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
