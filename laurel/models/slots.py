"""Slot attention: the native engine's KV cache and the attention over it, registered with transformers as ``"slots"``.

One forward carries T tokens end to end as (1, T): first one token of each of the slots 0..n-1 that decode, then runs of
prompt tokens that are prefilled into further slots. What the tokens are travels through the model's own forward as the
keyword ``slots``; no cache class and no mask of transformers takes part.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from laurel.models.served import unserved
from laurel.types import LaurelError

NAME = "slots"
_served: WeakSet[nn.Module] = WeakSet()


@dataclass(frozen=True)
class CacheShape:
    """Layers, KV heads and head size of a model."""

    layers: int
    kv_heads: int
    head_dim: int

    def bytes_per_token(self, dtype: torch.dtype) -> int:
        """Memory that one token of one sequence takes in the cache."""
        return 2 * self.layers * self.kv_heads * self.head_dim * dtype.itemsize


def cache_shape(module: nn.Module, max_len: int) -> CacheShape:
    """The shape of ``module``'s KV cache; a LaurelError says why if the model cannot be served up to ``max_len``."""
    config: Any = module.config
    reason = unserved(config.to_dict(), max_len)
    if reason is None and not getattr(module, "_supports_attention_backend", False):
        reason = f"{type(module).__name__} does not take a registered attention function; use rollout.name=vllm"
    if reason is not None:
        raise LaurelError(reason)
    return published_shape(config)


def published_shape(config: Any) -> CacheShape:
    """The shape that a Hugging Face config names, whoever serves it."""
    heads = config.num_attention_heads
    return CacheShape(
        layers=config.num_hidden_layers,
        kv_heads=getattr(config, "num_key_value_heads", None) or heads,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // heads,
    )


class SlotCache:
    """Keys and values of ``slots`` sequences of up to ``max_len`` tokens.

    ``data`` (2 * layers, slots, max_len, kv_heads * head_dim), keys of layer i at 2 i and values at 2 i + 1. It is zero
    at first: a masked place must still hold a finite number. On a CPU memory is taken when a place is first written.
    """

    def __init__(self, shape: CacheShape, *, slots: int, max_len: int, dtype: torch.dtype, device: torch.device | str):
        self.shape, self.slots, self.max_len = shape, slots, max_len
        width = shape.kv_heads * shape.head_dim
        self.data = torch.zeros(2 * shape.layers, slots, max_len, width, dtype=dtype, device=device)
        # Views made once: (slots * max_len, width) to write to, (slots, max_len, kv_heads, head_dim) to read from.
        self.flat = [plane.view(slots * max_len, width) for plane in self.data]
        self.planes = [plane.view(slots, max_len, shape.kv_heads, shape.head_dim) for plane in self.data]

    def copy(self, source: int, targets: list[int], length: int) -> None:
        """The first ``length`` tokens of slot ``source`` into each of ``targets``."""
        for target in targets:
            self.data[:, target, :length] = self.data[:, source, :length]

    def read(self, slot: int, length: int) -> Tensor:
        """A copy of the first ``length`` tokens of a slot, (2 * layers, length, width)."""
        return self.data[:, slot, :length].clone()

    def write(self, slot: int, tokens: Tensor) -> None:
        """What ``read`` returned, into the beginning of a slot."""
        self.data[:, slot, : tokens.shape[1]] = tokens


@dataclass(frozen=True)
class Run:
    """Consecutive tokens of a forward: ``length`` prompt tokens from position ``start`` on for each of ``slots``."""

    slots: tuple[int, ...]
    start: int
    length: int


class SlotStep:
    """What one forward computes: ``decode`` slots with their ``positions`` (decode,) int64, then ``runs`` of prompts.

    ``calls`` counts the layers that came through here, so that the engine notices a model with other layers.
    """

    def __init__(self, cache: SlotCache, positions: Tensor, runs: tuple[Run, ...] = ()):
        self.cache, self.runs, self.calls = cache, runs, 0
        self.decode = positions.numel()
        device, dtype, max_len = cache.data.device, cache.data.dtype, cache.max_len
        places = [torch.arange(self.decode, device=device) * max_len + positions]
        all_positions = [positions]
        for run in runs:
            within = torch.arange(run.start, run.start + run.length, device=device)
            places += [within + slot * max_len for slot in run.slots]
            all_positions += [within] * len(run.slots)
        self.places = torch.cat(places)
        self.position_ids = torch.cat(all_positions)[None]
        self.longest, self.mask = 0, None
        if self.decode:
            shortest, longest = (int(x) for x in positions.aminmax())
            self.longest = longest + 1
            if shortest != longest:  # (decode, 1, 1, longest): 0 where a slot has a token, else minus infinity
                hidden = torch.arange(self.longest, device=device) > positions[:, None]
                mask = torch.zeros(hidden.shape, dtype=dtype, device=device).masked_fill_(hidden, float("-inf"))
                self.mask = mask[:, None, None]
        self.run_masks = [_later_run_mask(run, dtype, device) for run in runs]


def _later_run_mask(run: Run, dtype: torch.dtype, device: torch.device) -> Tensor | None:
    """(length, start + length) additive causal mask of a run that continues a prompt; None for one that begins it."""
    if run.start == 0:
        return None
    mask = torch.full((run.length, run.start + run.length), float("-inf"), dtype=dtype, device=device)
    return mask.triu_(run.start + 1)


def slots_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    slots: SlotStep | None = None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **ignored: Any,
) -> tuple[Tensor, None]:
    """Query (1, Hq, T, D), key and value (1, Hkv, T, D) to (1, T, Hq, D); writes key and value into the cache."""
    if slots is None:
        raise ValueError("slot attention needs slots= in the model's forward")
    cache = slots.cache
    if softcap is not None or s_aux is not None or (sliding_window is not None and sliding_window < cache.max_len):
        raise LaurelError(
            f"{type(module).__name__} wants sliding_window={sliding_window}, softcap={softcap} or attention sinks, "
            "which the native engine does not compute; use another model"
        )
    slots.calls += 1
    layer: Any = module.layer_idx
    tokens = query.shape[2]
    query, key, value = (x[0].transpose(0, 1) for x in (query, key, value))  # (T, H, D)
    cache.flat[2 * layer].index_copy_(0, slots.places, key.reshape(tokens, -1))
    cache.flat[2 * layer + 1].index_copy_(0, slots.places, value.reshape(tokens, -1))
    keys, values = cache.planes[2 * layer], cache.planes[2 * layer + 1]
    outputs, at = [], slots.decode
    if at:
        outputs.append(_decode(query[:at], keys, values, slots, scaling))
    for run, mask in zip(slots.runs, slots.run_masks, strict=True):
        end = at + len(run.slots) * run.length
        outputs.append(_prefill(query[at:end], key[at:end], value[at:end], keys, values, run, mask, scaling))
        at = end
    return (outputs[0] if len(outputs) == 1 else torch.cat(outputs))[None], None


def _decode(query: Tensor, keys: Tensor, values: Tensor, slots: SlotStep, scale: float | None) -> Tensor:
    """One token (n, Hq, D) of each slot against its cache. The query heads of one KV head are rows of one query."""
    n, heads, dim = query.shape
    kv_heads = keys.shape[2]
    grouped = query.reshape(n, kv_heads, heads // kv_heads, dim)
    k, v = (x[:n, : slots.longest].transpose(1, 2) for x in (keys, values))
    out = scaled_dot_product_attention(grouped, k, v, attn_mask=slots.mask, scale=scale)
    return out.reshape(n, heads, dim)


def _prefill(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    keys: Tensor,
    values: Tensor,
    run: Run,
    mask: Tensor | None,
    scale: float | None,
) -> Tensor:
    """Prompt tokens (rows * length, H, D), causal within their row and after what the row's slot already holds."""
    rows = len(run.slots)
    q, k, v = (x.reshape(rows, run.length, *x.shape[1:]).transpose(1, 2) for x in (query, key, value))
    if mask is not None:
        past = torch.tensor(run.slots, device=query.device)
        k, v = (x[past, : run.start + run.length].transpose(1, 2) for x in (keys, values))
    out = scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None, scale=scale, enable_gqa=True)
    return out.transpose(1, 2).reshape(query.shape)


def register() -> None:
    """Make ``attn_implementation="slots"`` known to transformers."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    ALL_ATTENTION_FUNCTIONS.register(NAME, slots_attention)


@contextmanager
def serving(module: nn.Module) -> Iterator[None]:
    """Within it ``module`` is in eval mode and attends through slots; a learner finds it as it was afterwards.

    A LaurelError if another engine is running on the module: one would switch it back under the other.
    """
    if module in _served:
        raise LaurelError(f"another engine is running on this {type(module).__name__}; use one engine per module")
    register()
    _served.add(module)
    config: Any = module.config
    before, training = config._attn_implementation, module.training
    config._attn_implementation = NAME
    if training:
        module.eval()
    try:
        yield
    finally:
        _served.discard(module)
        config._attn_implementation = before
        if training:
            module.train()
