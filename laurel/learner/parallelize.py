"""FSDP2: parameters sharded over ranks, layer by layer."""

from __future__ import annotations

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor

from laurel.config.tree import Fsdp
from laurel.learner.dist import Ranks


def shard_groups(world: int, fsdp_size: int) -> tuple[int, int]:
    """(copies of the parameters, ranks that share each copy)."""
    size = world if fsdp_size < 1 or fsdp_size >= world else fsdp_size
    if world % size:
        raise ValueError(f"fsdp_config.fsdp_size={fsdp_size} does not divide {world} ranks")
    return world // size, size


def make_mesh(ranks: Ranks, fsdp: Fsdp) -> DeviceMesh:
    """One dimension (all ranks share a copy), or two: replicate x shard (HSDP)."""
    copies, size = shard_groups(ranks.world, fsdp.fsdp_size)
    if copies == 1:
        return init_device_mesh(ranks.device.type, (size,), mesh_dim_names=("shard",))
    return init_device_mesh(ranks.device.type, (copies, size), mesh_dim_names=("replicate", "shard"))


def parallelize(root: nn.Module, layer_names: set[str], *, ranks: Ranks, fsdp: Fsdp, compute: torch.dtype) -> nn.Module:
    """Shard ``root`` in place: a group for each decoder layer (by class name), one for what is left.

    Parameters stay in the dtype they have; ``compute`` is the dtype of the forward, and gradients are reduced in
    float32. FSDP averages gradients over ranks; the caller multiplies its loss by the world size to get the sum.
    """
    mesh = make_mesh(ranks, fsdp)
    # What layers hand on stays as it is: fast layers add up in float32 (models/layer.py)
    policy = MixedPrecisionPolicy(param_dtype=compute, reduce_dtype=torch.float32, cast_forward_inputs=False)
    offload = CPUOffloadPolicy(pin_memory=ranks.device.type == "cuda") if fsdp.param_offload else OffloadPolicy()
    kept = MixedPrecisionPolicy(reduce_dtype=torch.float32)
    for name, module in root.named_modules():
        if type(module).__name__ in layer_names:
            fully_shard(
                module,
                mesh=mesh,
                mp_policy=policy,
                offload_policy=offload,
                reshard_after_forward=fsdp.reshard_after_forward,
            )
        elif name.split(".")[-1] == "value_head":
            fully_shard(module, mesh=mesh, mp_policy=kept, offload_policy=offload)
    # The root keeps embedding and head gathered until its backward is done: the head needs them at once.
    fully_shard(root, mesh=mesh, mp_policy=policy, offload_policy=offload, reshard_after_forward=False)
    return root


def free_gathered(root: nn.Module) -> None:
    """Give back parameters that a forward without a backward left gathered."""
    for module in root.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def local(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's part of a parameter or gradient; the same storage."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
