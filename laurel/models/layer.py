"""The forward pass of Llama-like layers for training on a GPU: what is multiplied together is one product, and what
lies between products is one kernel.

``train_fast`` puts it in place of each layer's own forward, so hooks (sharding, checkpointing) work as before. Nothing
is compiled at run time but the kernels, so a batch of a new size costs nothing.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from laurel.models.attention import Packing
from laurel.models.decoder import NotServed, activation_of, adjacent, fuse_projections, norm_of, refuse, side_by_side
from laurel.models.kernels.layers import rms_norm
from laurel.models.recompute import recomputed
from laurel.models.rows import attend_qkv
from laurel.models.trained import add_norm, gate


class _Beside(torch.autograd.Function):
    """Parameters that lie side by side in memory as one tensor; its gradient falls to each its own part."""

    @staticmethod
    def forward(ctx: Any, *parameters: Tensor) -> Tensor:
        ctx.rows = [parameter.shape[0] for parameter in parameters]
        return side_by_side(parameters)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:  # type: ignore[override]
        return grad.split(ctx.rows)


def _together(x: Tensor, *layers: nn.Linear) -> Tensor:
    """The outputs (n, ...) of linear layers end to end: one product if their parameters lie side by side."""
    weights = [layer.weight for layer in layers]
    biases = [layer.bias for layer in layers if layer.bias is not None]
    if adjacent(weights) and (not biases or adjacent(biases)):
        return linear(x, _Beside.apply(*weights), _Beside.apply(*biases) if biases else None)
    return torch.cat([layer(x) for layer in layers], -1)


class FastLayer:
    """The forward of one layer, called as the layer's own."""

    def __init__(self, layer: Any):
        self.layer = layer
        self.config = config = layer.self_attn.config
        self.activation = activation_of(config)
        self.sizes = (config.num_attention_heads, config.num_key_value_heads, layer.self_attn.head_dim)

    def __call__(
        self, hidden_states: Tensor, *, position_embeddings: tuple[Tensor, Tensor], packing: Packing, **ignored: Any
    ) -> Tensor:
        """(1, C, H) to (1, C, H), float32 from the first layer on."""
        attention, mlp = self.layer.self_attn, self.layer.mlp
        hidden, x = add_norm(hidden_states[0].float(), None, norm_of(self.layer.input_layernorm, self.config))
        qkv = self._head_norms(_together(x, attention.q_proj, attention.k_proj, attention.v_proj))
        cos, sin = (table[0] for table in position_embeddings)
        attended = attend_qkv(qkv, cos, sin, packing, sizes=self.sizes, scale=attention.scaling)
        before_mlp = norm_of(self.layer.post_attention_layernorm, self.config)
        hidden, x = add_norm(hidden, attention.o_proj(attended), before_mlp)
        update = mlp.down_proj(gate(_together(x, mlp.gate_proj, mlp.up_proj), self.activation))
        return (hidden + update)[None]

    def _head_norms(self, qkv: Tensor) -> Tensor:
        attention = self.layer.self_attn
        if not hasattr(attention, "q_norm"):
            return qkv
        heads, kv_heads, dim = self.sizes
        query, key, value = qkv.view(qkv.shape[0], -1, dim).split((heads, kv_heads, kv_heads), 1)
        query = rms_norm(query, norm_of(attention.q_norm, self.config))
        key = rms_norm(key, norm_of(attention.k_norm, self.config))
        return torch.cat((query, key, value), 1).flatten(1)


def train_fast(backbone: Any) -> str | None:
    """Give each layer of a Hugging Face decoder without its head this file's forward. The reason if its layers are of
    another kind, and then nothing is changed. Parameters are laid out to be multiplied together."""
    try:
        refuse(backbone)
    except NotServed as reason:
        return str(reason)
    fuse_projections(backbone)
    for layer in backbone.layers:
        layer.forward = recomputed(layer, FastLayer(layer))
    return None
