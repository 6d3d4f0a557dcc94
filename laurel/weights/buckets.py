"""A learner's weights as the engine wants them: whole, in the rollout dtype, a bucket at a time."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

BUCKET_BYTES = 256 << 20


def named_weights(module: nn.Module) -> dict[str, nn.Parameter]:
    """Every parameter once, in an order that is the same on all ranks; tied ones under their first name."""
    return dict(module.named_parameters())


def tied_names(module: nn.Module) -> dict[str, str]:
    """Names of tied parameters to the name that ``named_weights`` has them under.

    Example: ``{"lm_head.weight": "model.embed_tokens.weight"}``.
    """
    first = {id(parameter): name for name, parameter in module.named_parameters()}
    everywhere = module.named_parameters(remove_duplicate=False)
    return {name: first[id(parameter)] for name, parameter in everywhere if first[id(parameter)] != name}


def gather(parameter: Tensor, dtype: torch.dtype, device: torch.device) -> Tensor:
    """The whole of a parameter in ``dtype`` on ``device``. Collective: every rank of a sharded parameter must call it.

    Shards are converted before they travel. What comes back may be the parameter's own memory.
    """
    if not isinstance(parameter, DTensor):
        return parameter.detach().to(device, dtype)
    part = parameter.to_local().detach().to(device, dtype)
    sharded = DTensor.from_local(
        part,
        parameter.device_mesh,
        parameter.placements,
        run_check=False,
        shape=parameter.shape,
        stride=parameter.stride(),
    )
    return sharded.full_tensor()


def buckets(
    module: nn.Module, *, dtype: torch.dtype, device: torch.device, bucket_bytes: int = BUCKET_BYTES
) -> Iterator[dict[str, Tensor]]:
    """Whole tensors by name, together at most ``bucket_bytes`` (a larger tensor comes alone).

    Collective when the module is sharded: every rank must draw every bucket, in step.
    """
    bucket: dict[str, Tensor] = {}
    size = 0
    for name, parameter in named_weights(module).items():
        takes = parameter.numel() * dtype.itemsize
        if bucket and size + takes > bucket_bytes:
            yield bucket
            bucket, size = {}, 0
        bucket[name] = gather(parameter, dtype, device)
        size += takes
    if bucket:
        yield bucket
