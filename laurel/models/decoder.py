"""The forward pass of Llama-like models, written for serving: on the Hugging Face module's own parameters, without
autograd, with one matrix product for queries, keys and values and one for gate and up.

The parameters that are multiplied together are laid out side by side in one piece of memory and stay parameters of the
module, so the learner trains the very memory that the engine reads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding, linear

from laurel.models.kernels.layers import (
    Activation,
    HeadNorms,
    Norm,
    Rope,
    add_rms_norm,
    gated,
    rope_into_cache,
)
from laurel.models.paged import PagedCache
from laurel.types import LaurelError

FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "gemma")
"""Values of ``model_type`` whose layers are those of this file."""
_ACTIVATIONS: dict[str, Activation] = {
    "silu": "silu",
    "gelu": "gelu",
    "gelu_pytorch_tanh": "gelu_pytorch_tanh",
    "gelu_new": "gelu_pytorch_tanh",
}

Attend = Callable[[int, Tensor, Tensor, Tensor, float], Tensor]
"""Layer, query (n, Hq, D), key and value (n, Hkv, D) of the new tokens, scale; to (n, Hq * D)."""


class NotServed(LaurelError):
    """This forward pass is not that of the module; the reason is the message."""


@dataclass(frozen=True)
class Layer:
    """The parameters of one layer; matrices as ``linear`` takes them, (out, in)."""

    before_attention: Norm
    qkv: Tensor
    qkv_bias: Tensor | None
    norms: HeadNorms | None
    out: Tensor
    out_bias: Tensor | None
    before_mlp: Norm
    gate_up: Tensor
    down: Tensor


class Decoder:
    """Hidden states of a causal model for serving. Raises NotServed for a module whose layers it does not know.

    ``max_len``: the positions that the rotary table covers.
    """

    def __init__(self, module: nn.Module, max_len: int):
        config: Any = module.config
        backbone: Any = module.base_model
        refuse(backbone)
        head: Any = module.get_output_embeddings()  # type: ignore[operator]
        if head.bias is not None:
            raise NotServed("its head has a bias")
        self.heads = config.num_attention_heads
        self.activation = activation_of(config)
        self.embedding: Tensor = backbone.embed_tokens.weight
        scale = getattr(backbone.embed_tokens, "scalar_embed_scale", 1.0)
        self.embedding_scale = torch.tensor(scale, dtype=self.embedding.dtype, device=self.embedding.device)
        self.scaled = scale != 1.0
        self.scale: float = backbone.layers[0].self_attn.scaling
        self.rope = _rope_table(backbone, max_len)
        self.layers = [_layer(layer, config) for layer in backbone.layers]
        self.norm = norm_of(backbone.norm, config)
        self.head: Tensor = head.weight

    def __call__(self, ids: Tensor, positions: Tensor, places: Tensor, cache: PagedCache, attend: Attend) -> Tensor:
        """Tokens ids, at positions and for places of the cache, all (n,) int64, to hidden states (n, H) after the last
        norm; their keys and values are in the cache afterwards."""
        residual = embedding(ids, self.embedding)
        if self.scaled:
            residual *= self.embedding_scale
        residual = residual.float()
        update = None
        for i, layer in enumerate(self.layers):
            keys, values = cache.planes[i]
            qkv = linear(add_rms_norm(residual, update, layer.before_attention), layer.qkv, layer.qkv_bias)
            query, key, value = rope_into_cache(
                qkv, positions, places, keys, values, heads=self.heads, rope=self.rope, norms=layer.norms
            )
            update = linear(attend(i, query, key, value, self.scale), layer.out, layer.out_bias)
            hidden = add_rms_norm(residual, update, layer.before_mlp)
            update = linear(gated(linear(hidden, layer.gate_up), self.activation), layer.down)
        return add_rms_norm(residual, update, self.norm)

    def logits(self, hidden: Tensor) -> Tensor:
        """(n, H) to (n, V) float32, added up and kept so: rounding a logit of 20 to bfloat16 costs 0.06 nats."""
        if hidden.is_cuda and hidden.dtype != torch.float32:
            return torch.mm(hidden, self.head.t(), out_dtype=torch.float32)
        return linear(hidden, self.head).float()


def refuse(backbone: Any) -> None:
    """Raise NotServed unless the layers of ``backbone``, a Hugging Face decoder without its head, are of this kind."""
    config = backbone.config
    if config.model_type not in FAMILIES:
        raise NotServed(f"{config.model_type} is none of {', '.join(FAMILIES)}")
    activation_of(config)
    if any(projection.bias is not None for projection in _mlp(backbone.layers[0])):
        raise NotServed("its MLP has a bias")
    if any(type(projection) is not nn.Linear for layer in backbone.layers for projection in _projections(layer)):
        raise NotServed("its projections are not plain linear layers")


def activation_of(config: Any) -> Activation:
    """The activation of the MLP's gate; NotServed if it is none that is known here."""
    name = getattr(config, "hidden_activation", None) or config.hidden_act
    if name not in _ACTIVATIONS:
        raise NotServed(f"hidden_act={name} is none of {', '.join(_ACTIVATIONS)}")
    return _ACTIVATIONS[name]


def fuse_projections(backbone: Any) -> None:
    """Lay out side by side what is multiplied at once. Parameters keep names, shapes and values; those that lie so
    already stay where they are. To be done before an optimizer or a graph takes the parameters."""
    for layer in backbone.layers:
        attention, mlp = layer.self_attn, layer.mlp
        heads = (attention.q_proj, attention.k_proj, attention.v_proj)
        side_by_side([projection.weight for projection in heads])
        if heads[0].bias is not None:
            side_by_side([projection.bias for projection in heads])
        side_by_side([mlp.gate_proj.weight, mlp.up_proj.weight])


def side_by_side(parameters: Sequence[Tensor]) -> Tensor:
    """One tensor, the parameters end to end along their first dimension, in the memory that they themselves use.

    Parameters that are not adjacent are moved.
    """
    first = parameters[0]
    rows = sum(parameter.shape[0] for parameter in parameters)
    if not adjacent(parameters):
        with torch.no_grad():
            whole = torch.cat([parameter.detach() for parameter in parameters])
        start = 0
        for parameter in parameters:
            parameter.data = whole[start : start + parameter.shape[0]]
            start += parameter.shape[0]
    return first.detach().as_strided((rows, *first.shape[1:]), first.stride())


def adjacent(parameters: Sequence[Tensor]) -> bool:
    """Whether each begins where the one before it ends, all in one piece of memory."""
    storage = parameters[0].untyped_storage().data_ptr()
    expected = parameters[0].data_ptr()
    for parameter in parameters:
        if parameter.data_ptr() != expected or parameter.untyped_storage().data_ptr() != storage:
            return False
        if not parameter.is_contiguous():
            return False
        expected += parameter.numel() * parameter.element_size()
    return True


def _layer(layer: Any, config: Any) -> Layer:
    attention, mlp = layer.self_attn, layer.mlp
    heads = (attention.q_proj, attention.k_proj, attention.v_proj)
    norms = None
    if hasattr(attention, "q_norm"):
        query, key = (norm_of(norm, config) for norm in (attention.q_norm, attention.k_norm))
        norms = HeadNorms(query.weight, key.weight, query.eps)
    return Layer(
        before_attention=norm_of(layer.input_layernorm, config),
        qkv=side_by_side([projection.weight for projection in heads]),
        qkv_bias=None if heads[0].bias is None else side_by_side([projection.bias for projection in heads]),
        norms=norms,
        out=attention.o_proj.weight,
        out_bias=attention.o_proj.bias,
        before_mlp=norm_of(layer.post_attention_layernorm, config),
        gate_up=side_by_side([mlp.gate_proj.weight, mlp.up_proj.weight]),
        down=mlp.down_proj.weight,
    )


def norm_of(norm: Any, config: Any) -> Norm:
    """A norm module of a model with this ``config``, with its weight as it is now."""
    eps = norm.variance_epsilon if hasattr(norm, "variance_epsilon") else norm.eps
    return Norm(norm.weight, eps, around_one=config.model_type == "gemma")


def _mlp(layer: Any) -> tuple[Any, ...]:
    return layer.mlp.gate_proj, layer.mlp.up_proj, layer.mlp.down_proj


def _projections(layer: Any) -> tuple[Any, ...]:
    attention = layer.self_attn
    return (attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj, *_mlp(layer))


def _rope_table(backbone: Any, max_len: int) -> Rope:
    """Cosines and sines as the module's own rotary embedding gives them, rounded to its dtype."""
    weight = backbone.embed_tokens.weight
    positions = torch.arange(max_len, device=weight.device)[None]
    with torch.no_grad():
        cos, sin = backbone.rotary_emb(weight[:1, None], positions)
    half = cos.shape[-1] // 2
    dim = backbone.layers[0].self_attn.head_dim
    if cos.shape[-1] != dim:
        raise NotServed(f"its rotary embedding turns {cos.shape[-1]} of {dim} numbers of a head")
    return Rope(cos[0, :, :half].contiguous(), sin[0, :, :half].contiguous())
