"""The arguments of a vLLM engine: what Laurel's settings become, and which others a user may pass on by name."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from laurel.config.tree import Config
from laurel.types import Problem

FIELD = "actor_rollout_ref.rollout.engine_kwargs.vllm"
ROLLOUT, MODEL = "actor_rollout_ref.rollout", "actor_rollout_ref.model"
OURS = {
    "model": f"{MODEL}.path",
    "tokenizer": f"{MODEL}.tokenizer_path",
    "trust_remote_code": f"{MODEL}.trust_remote_code",
    "hf_overrides": f"{MODEL}.override_config",
    "gpu_memory_utilization": f"{ROLLOUT}.gpu_memory_utilization",
    "max_model_len": f"{ROLLOUT}.max_model_len",
    "max_num_seqs": f"{ROLLOUT}.max_num_seqs",
    "max_num_batched_tokens": f"{ROLLOUT}.max_num_batched_tokens",
    "tensor_parallel_size": f"{ROLLOUT}.tensor_model_parallel_size",
    "enable_sleep_mode": f"{ROLLOUT}.free_cache_engine",
}
"""Arguments that a setting of Laurel decides."""
FIXED = {
    "dtype": "the learner's weights decide it",
    "load_format": "weights come from the learner",
    "skip_tokenizer_init": "tokens go in and out",
    "worker_extension_cls": "Laurel's own takes the weights in",
    "logits_processors": "Laurel's own follows the requests",
    "logprobs_mode": "log-probs are those of docs/vllm.md",
    "seed": "every request has a seed of its own",
    "quantization": "weights could not be compared with the learner's",
    "speculative_config": "Laurel's sampler takes one token a step",
    "pipeline_parallel_size": "a replica has one stage",
    "data_parallel_size": "replicas are Laurel's",
    "enable_lora": "whole weights are published",
}
"""Arguments that must be as Laurel has them, and why."""


def engine_arguments(
    config: Config, *, folder: str, dtype: str, max_len: int, max_seqs: int, cache_bytes: int | None
) -> dict[str, Any]:
    """vLLM's EngineArgs by name. ``cache_bytes``: of the KV cache on a CPU; None on a GPU, whose memory vLLM measures.

    Example: ``{"model": "/models/qwen", "load_format": "dummy", "max_num_seqs": 64, ...}``.
    """
    rollout, model = config.actor_rollout_ref.rollout, config.actor_rollout_ref.model
    on_gpu = cache_bytes is None
    arguments: dict[str, Any] = {
        "model": folder,
        "trust_remote_code": model.trust_remote_code,
        "hf_overrides": dict(model.override_config),
        "dtype": dtype,
        "load_format": "dummy",
        "skip_tokenizer_init": True,
        "tensor_parallel_size": rollout.tensor_model_parallel_size,
        "max_model_len": max_len,
        "max_num_seqs": max_seqs,
        # vLLM wants room for a token of every sequence, and warns of more than all can have
        "max_num_batched_tokens": max(min(rollout.max_num_batched_tokens, max_seqs * max_len), max_seqs),
        "logprobs_mode": "raw_logits",
        "worker_extension_cls": "laurel.rollout.vllm.worker.LaurelWorker",
        "logits_processors": ["laurel.rollout.vllm.sampler:Rows"],
        "seed": config.trainer.seed,
        "disable_log_stats": True,
    }
    if on_gpu:
        arguments["gpu_memory_utilization"] = rollout.gpu_memory_utilization
        arguments["enable_sleep_mode"] = rollout.free_cache_engine
    else:
        arguments["kv_cache_memory_bytes"] = cache_bytes
    given = dict(rollout.engine_kwargs.get("vllm", {}))
    return arguments | given if on_gpu else arguments | given | {"enforce_eager": True}  # nothing is compiled on a CPU


def check_arguments(given: Mapping[str, Any], accepted: set[str] | None) -> list[Problem]:
    """Problems of ``engine_kwargs.vllm``. ``accepted``: the names that vLLM takes; None if vLLM is not here."""
    problems = []
    for name, value in given.items():
        if name in OURS:
            cure = f"set {OURS[name]}, which decides it, and leave this out"
        elif name in FIXED:
            cure = f"{FIXED[name]}; leave it out"
        elif accepted is not None and name not in accepted:
            cure = f"vLLM's EngineArgs has no {name}; did you mean {_nearest(name, accepted)}?"
        else:
            continue
        problems.append(Problem(f"{FIELD}.{name}", value, cure))
    return problems


def accepted_arguments() -> set[str] | None:
    """The fields of vLLM's EngineArgs; None without vLLM. Read from its source, since importing it takes seconds."""
    spec = find_spec("vllm")
    if spec is None or spec.origin is None:
        return None
    source = Path(spec.origin).parent / "engine" / "arg_utils.py"
    for node in ast.parse(source.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef) and node.name == "EngineArgs":
            fields = [one.target for one in node.body if isinstance(one, ast.AnnAssign)]
            return {target.id for target in fields if isinstance(target, ast.Name)}
    raise ValueError(f"{source} has no class EngineArgs")


def _nearest(name: str, known: set[str]) -> str:
    from difflib import get_close_matches

    return next(iter(get_close_matches(name, sorted(known), n=1, cutoff=0.0)))
