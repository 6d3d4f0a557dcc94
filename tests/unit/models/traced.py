"""The memory that the code of a GPU takes, found without one: it runs on tensors that have no data, and what lives is
counted. Kernels are replaced by what they allocate."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

from laurel.config.tree import Model
from laurel.models import attention, heads, layer, rows, trained
from laurel.models.attention import Packing, Shared, register
from laurel.models.kernels import log_probs_triton, rows_triton, train_triton
from laurel.models.load import ValueModel, _prepared
from laurel.models.memory import Tokens


class Live(TorchDispatchMode):
    """Counts the bytes of tensors that are alive, in blocks of 512 as the allocator of a GPU does."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, Tensor):
                self._add(tensor.untyped_storage())
        return out

    def _add(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, -(-storage.nbytes() // 512) * 512
        if key not in self._known:
            self._known.add(key)
            self.now += size
            self.peak = max(self.peak, self.now)
            weakref.finalize(storage, self._forget, key, size)

    def _forget(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.now -= size


@dataclass(frozen=True)
class Trace:
    """``parameters`` counted, and bytes: ``loaded`` after loading, ``update`` at the peak of a second micro-batch,
    ``forward`` at the peak of one without gradients."""

    parameters: int
    loaded: int
    update: int
    forward: int


class _Attended(torch.autograd.Function):
    """What varlen attention holds."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out = torch.empty_like(q)
        ctx.save_for_backward(q, k, v, out, q.new_empty(q.shape[1], q.shape[0], dtype=torch.float32))
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:  # type: ignore[override]
        return tuple(torch.empty_like(x) for x in ctx.saved_tensors[:3])


def _varlen(q: Tensor, k: Tensor, v: Tensor, *ignored: Any) -> Tensor:
    if not torch.is_grad_enabled():
        return torch.empty_like(q)
    groups = q.shape[1] // k.shape[1]
    return _Attended.apply(q, *((x.repeat_interleave(groups, 1) for x in (k, v)) if groups > 1 else (k, v)))


def _add_norm(hidden: Tensor, update: Tensor | None, weight: Tensor, *ignored: Any) -> tuple[Tensor, ...]:
    summed = hidden if update is None else torch.empty_like(hidden)
    return summed, torch.empty_like(hidden, dtype=weight.dtype), hidden.new_empty(hidden.shape[0])


def _add_norm_back(summed: Tensor, scales: Tensor, weight: Tensor, *grads: Tensor, update: Any, **ignored: Any) -> Any:
    d_update = None if update is None else torch.empty_like(summed, dtype=update)
    parts = summed.new_empty(-(-summed.shape[0] // 16), summed.shape[1])
    return torch.empty_like(summed), d_update, parts.sum(0).to(weight.dtype)


def _turned(qkv: Tensor, cos: Tensor, sin: Tensor, source: Any, tokens: int, sizes: tuple[int, int, int]) -> Any:
    query_heads, kv_heads, dim = sizes
    both = qkv.new_empty(tokens, 2 * kv_heads, dim)
    return qkv.new_empty(qkv.shape[0], query_heads, dim), both[:, :kv_heads], both[:, kv_heads:]


def _turned_back(d_query: Tensor, d_key: Tensor, *ignored: Any) -> Tensor:
    return d_query.new_empty(d_query.shape[0], (d_query.shape[1] + 2 * d_key.shape[1]) * d_query.shape[2])


def _attend_qkv(qkv: Tensor, cos: Tensor, sin: Tensor, packing: Packing, *, sizes: Any, scale: float) -> Tensor:
    return rows._Attend.apply(qkv, cos, sin, packing, sizes, scale)


def _flash_gradients(grad: Tensor, q: Tensor, k: Tensor, v: Tensor, *ignored: Any) -> tuple[Tensor, ...]:
    return torch.empty_like(q), k.new_empty(k.shape), v.new_empty(v.shape)


def _flash(q: Tensor, *ignored: Any) -> tuple[Tensor, ...]:
    sums = q.new_empty(q.shape[1], q.shape[0], dtype=torch.float32)
    return torch.empty_like(q), sums, q.new_empty(2, dtype=torch.int64), q.new_empty(0)


@contextmanager
def _as_on_a_gpu() -> Any:
    """The way of a GPU through models/, with kernels that only allocate."""
    patch = pytest.MonkeyPatch()
    for module, name, stand_in in (
        (layer, "add_norm", lambda h, u, n: trained._AddNorm.apply(h, u, n.weight, n.eps, n.around_one)),
        (layer, "gate", trained._Gate.apply),
        (layer, "attend_qkv", _attend_qkv),
        (trained, "gated", lambda x, kind: x.new_empty(x.shape[0], x.shape[1] // 2)),
        (train_triton, "add_norm", _add_norm),
        (train_triton, "add_norm_back", _add_norm_back),
        (train_triton, "gated_back", lambda gate_up, *_: torch.empty_like(gate_up)),
        (rows_triton, "turned", _turned),
        (rows_triton, "turned_back", _turned_back),
        (rows, "flash", _flash),
        (rows, "flash_gradients", _flash_gradients),
        (heads, "_fast_logits", lambda h, w: h.new_empty(h.shape[0], w.shape[0], dtype=torch.float32)),
        (log_probs_triton, "take_log_probs", lambda z, *_, entropy: tuple(z.new_empty(z.shape[0]) for _ in range(3))),
        (log_probs_triton, "gradient_of_logits", lambda z, *_, dtype, **more: z.new_empty(z.shape, dtype=dtype)),
        (attention, "_on_cpu", _varlen),
    ):
        patch.setattr(module, name, stand_in)
    try:
        yield
    finally:
        patch.undo()


def traced(
    fields: Mapping[str, Any],
    tokens: Tokens,
    *,
    recompute: bool = False,
    keep: int = 0,
    fast: bool = True,
    value_model: bool = False,
) -> Trace:
    """A causal model of this config.json, or a value model of one, as one rank holds and updates it: bf16, with
    masters, moments and sums."""
    register()
    live = Live()
    with warnings.catch_warnings(), _as_on_a_gpu(), FakeTensorMode(allow_non_fake_inputs=True), live:
        warnings.simplefilter("ignore")
        config = AutoConfig.for_model(**fields)
        kind = AutoModel if value_model else AutoModelForCausalLM
        model: Any = kind.from_config(config, dtype=torch.bfloat16, attn_implementation="packed")
        model = _prepared(model, Model(path="none", enable_gradient_checkpointing=recompute)).train()
        model = ValueModel(model).train() if value_model else model
        if fast:
            assert layer.train_fast(model.model) is None
        state = [torch.empty_like(p, dtype=torch.float32) for p in model.parameters() for _ in range(3)]
        gradients: dict[Any, Tensor] = {}
        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(_adding_to(gradients))
        loaded = live.now
        states, log_probs = _forwards(model, tokens, keep)
        for _ in range(2):
            live.peak = live.now
            log_probs(states()).sum().backward()
        update = live.peak
        gradients.clear()
        live.peak = live.now
        with torch.no_grad():
            log_probs(states())
        del state
    return Trace(sum(p.numel() for p in model.parameters()), loaded, update, live.peak)


def _adding_to(gradients: dict[Any, Tensor]) -> Callable[[Any], None]:
    def add(parameter: Any) -> None:
        if parameter in gradients:
            gradients[parameter].add_(parameter.grad)
        else:
            gradients[parameter] = parameter.grad.float()
        parameter.grad = None

    return add


def _forwards(model: Any, tokens: Tokens, keep: int) -> tuple[Callable[[], Tensor], Callable[[Tensor], Tensor]]:
    def ids(count: int) -> Tensor:
        return torch.empty(count, dtype=torch.int64)

    computed, total = tokens.computed, tokens.rows
    shared = Shared(ids(computed), ids(total), ids(computed + 1), ids(total)) if total > computed else None
    bounds = torch.empty(2, dtype=torch.int32)
    packing = Packing(bounds, total, bounds, total, shared=shared)
    fed, places, wanted, targets = ids(computed)[None], ids(computed)[None], ids(tokens.sampled), ids(tokens.sampled)
    value_head = getattr(model, "value_head", None)

    def states() -> Tensor:
        found = model.model(input_ids=fed, position_ids=places, use_cache=False, packing=packing).last_hidden_state
        return found[0].index_select(0, wanted).to(torch.bfloat16)

    def log_probs(hidden: Tensor) -> Tensor:
        if value_head is not None:
            return value_head(hidden.to(value_head.weight.dtype))[:, 0].float()
        weight = model.get_output_embeddings().weight
        chunk = heads.chunk_tokens(weight.shape[0], torch.device("cuda"))
        return heads._FastHead.apply(hidden, weight, targets, 1.0, chunk, True, keep)[0]

    return states, log_probs
