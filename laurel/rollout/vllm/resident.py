"""A vLLM model's tensors under the names and in the shapes of the learner's, read from where they lie."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from vllm.distributed import get_tensor_model_parallel_world_size, tensor_model_parallel_all_gather
from vllm.model_executor.layers.linear import (
    ColumnParallelLinear,
    MergedColumnParallelLinear,
    QKVParallelLinear,
    RowParallelLinear,
)
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding


def resident(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Names of the learner and whole tensors, a layer at a time: fused projections are cut up, the vocabulary's padding
    is left out, and with tensor parallelism shards are gathered (then it is collective over the engine's workers).

    A tied tensor comes under its first name.
    """
    packed: dict[str, list[str]] = getattr(model, "packed_modules_mapping", {})
    seen: set[int] = set()
    for path, layer in model.named_modules():
        for kind, tensor in layer._parameters.items():
            if tensor is None or id(tensor) in seen:
                continue
            seen.add(id(tensor))
            parent, _, own = path.rpartition(".")
            names = [f"{parent}.{part}.{kind}" if parent else f"{part}.{kind}" for part in packed.get(own, [own])]
            parts = _whole(layer, kind, tensor.detach())
            if len(parts) == len(names):
                yield from zip(names, parts, strict=True)
            else:  # a layer that is laid out otherwise: it is told apart by name, and the comparison names it
                yield f"{path}.{kind}", tensor.detach()


def _whole(layer: Any, kind: str, tensor: Tensor) -> list[Tensor]:
    """The parts that a layer's tensor is made of, whole."""
    ways = get_tensor_model_parallel_world_size()
    if isinstance(layer, QKVParallelLinear):
        heads = (layer.num_heads, layer.num_kv_heads, layer.num_kv_heads)
        widths = (layer.head_size, layer.head_size, getattr(layer, "v_head_size", layer.head_size))
        query, key, value = tensor.split([count * width for count, width in zip(heads, widths, strict=True)])
        copies = layer.num_kv_head_replicas
        return [_gathered(query, 0), *(_gathered(part, 0, copies=copies) for part in (key, value))]
    if isinstance(layer, MergedColumnParallelLinear):
        return [_gathered(part, 0) for part in tensor.split([size // ways for size in layer.output_sizes])]
    if isinstance(layer, ColumnParallelLinear):
        return [_gathered(tensor, 0)]
    if isinstance(layer, RowParallelLinear):
        return [_gathered(tensor, 1) if kind == "weight" else tensor]
    if isinstance(layer, VocabParallelEmbedding):
        return [_gathered(tensor, 0)[: layer.org_vocab_size]]
    return [tensor]


def _gathered(shard: Tensor, dim: int, *, copies: int = 1) -> Tensor:
    """All workers' shards put together; ``copies`` neighbours hold the same one."""
    ways = get_tensor_model_parallel_world_size()
    if ways == 1:
        return shard
    whole = tensor_model_parallel_all_gather(shard.contiguous(), dim)
    return torch.cat(whole.chunk(ways, dim)[::copies], dim) if copies > 1 else whole
