"""Packed attention: many rows end to end in one sequence, and no token of one row attends to another's.

Registered with transformers as ``"packed"``. What the rows are travels through the model's forward as the keyword
``packing``; transformers builds no mask for an attention that it has no mask function for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from laurel.models.devices import moved
from laurel.types import LaurelError

varlen_attn: Callable[..., Any] | None
try:
    from torch.nn.attention.varlen import varlen_attn
except ImportError:  # before torch 2.11
    varlen_attn = None

NAME = "packed"
# A row joins a bucket whose longest row it fills at least this far: bounds what is computed for padding.
_LEAST_FILL = 0.75


@dataclass(frozen=True)
class Bucket:
    """Rows of similar length, which are attended together as (rows, length)."""

    rows: int
    length: int


@dataclass(frozen=True)
class Shared:
    """Rows that begin with the same tokens, which the model computes once: C <= T tokens stand for all T.

    ``kept`` (C,) are the tokens that are computed, among all T; ``source`` (T,) is which of the C computed tokens each
    of the T is. Only attention sees all T, since a token's neighbours are those of its row.

    Computed token c stands for the tokens ``members[offsets[c]:offsets[c + 1]]``; (C + 1,) and (T,).
    """

    kept: Tensor
    source: Tensor
    offsets: Tensor
    members: Tensor

    @staticmethod
    def of(kept: Tensor, source: Tensor) -> Shared:
        """From the kept tokens and the computed token of each of T."""
        counts = torch.bincount(source, minlength=kept.numel())
        offsets = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
        return Shared(kept, source, offsets, torch.argsort(source, stable=True))

    def to(self, device: torch.device | str) -> Shared:
        """The same on another device."""
        return Shared(*(moved(tensor, device) for tensor in (self.kept, self.source, self.offsets, self.members)))


@dataclass(frozen=True)
class Packing:
    """Where rows begin in a packed sequence of T tokens, and on a CPU how to lay them out for attention.

    ``cu_seqlens`` (N + 1,) int32 and ``max_seqlen`` are what a varlen kernel wants. The CPU lays rows out in
    ``buckets``, padded on the right to P places in all: ``padded`` (P,) is the token at each place (padding repeats
    the row's last token, which no earlier query sees), ``place`` (T,) the place of each token. Both are None when all
    rows have one length, so that a view does. With ``shared`` the model's tokens are the C computed ones, and
    ``cu_queries`` (N + 1,) int32 and ``max_queries`` say how many of them lie in each row: the last ones of it.
    """

    cu_seqlens: Tensor
    max_seqlen: int
    cu_queries: Tensor
    max_queries: int
    buckets: tuple[Bucket, ...] = ()
    padded: Tensor | None = field(default=None, repr=False)
    place: Tensor | None = field(default=None, repr=False)
    shared: Shared | None = field(default=None, repr=False)

    @staticmethod
    def of(cu_seqlens: Tensor, device: torch.device | str, shared: Shared | None = None) -> Packing:
        """The packing of rows that begin at ``cu_seqlens`` (N + 1,), for tensors on ``device``."""
        starts = cu_seqlens.to("cpu", torch.int64)
        lengths = starts.diff()
        longest = int(lengths.max())
        queries, most = starts, longest
        if shared is not None:
            queries = torch.searchsorted(shared.kept.cpu(), starts)
            most = int(queries.diff().max())
        if torch.device(device).type != "cpu":
            shared = None if shared is None else shared.to(device)
            cu, cu_queries = (moved(x.int(), device) for x in (starts, queries))
            return Packing(cu, longest, cu_queries, most, shared=shared)
        bounds = (starts.int(), longest, queries.int(), most)
        if bool((lengths == longest).all()):
            return Packing(*bounds, (Bucket(lengths.numel(), longest),), shared=shared)
        buckets, padded, own = _lay_out(starts[:-1], lengths)
        place = torch.empty(int(starts[-1]), dtype=torch.int64)
        place[padded[own]] = own.nonzero()[:, 0]
        return Packing(*bounds, buckets, padded, place, shared)


def _lay_out(starts: Tensor, lengths: Tensor) -> tuple[tuple[Bucket, ...], Tensor, Tensor]:
    """Buckets, the token at each of P places, and which places (P,) bool are no padding."""
    buckets: list[Bucket] = []
    padded: list[Tensor] = []
    own: list[Tensor] = []
    order = sorted(range(lengths.numel()), key=lambda i: (-int(lengths[i]), i))
    first = 0
    while first < len(order):
        longest = int(lengths[order[first]])
        last = first
        while last < len(order) and int(lengths[order[last]]) >= _LEAST_FILL * longest:
            last += 1
        rows = torch.tensor(order[first:last])
        within, length = torch.arange(longest)[None], lengths[rows][:, None]
        padded.append((starts[rows][:, None] + torch.minimum(within, length - 1)).view(-1))
        own.append((within < length).view(-1))
        buckets.append(Bucket(rows.numel(), longest))
        first = last
    return tuple(buckets), torch.cat(padded), torch.cat(own)


class _Pad(torch.autograd.Function):
    """(T, ...) to (P, ...). Padding is not seen by any query that counts, so its gradient is 0 and is not read."""

    @staticmethod
    def forward(ctx: Any, tokens: Tensor, padded: Tensor, place: Tensor) -> Tensor:
        ctx.place = place
        return tokens.index_select(0, padded)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
        return grad.index_select(0, ctx.place), None, None


class _Unpad(torch.autograd.Function):
    """(P, ...) back to (T, ...)."""

    @staticmethod
    def forward(ctx: Any, places: Tensor, place: Tensor) -> Tensor:
        ctx.place, ctx.count = place, places.shape[0]
        return places.index_select(0, place)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        full = grad.new_zeros((ctx.count, *grad.shape[1:]))
        full[ctx.place] = grad
        return full, None


def packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    packing: Packing | None = None,
    cu_seqlens: Tensor | None = None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **ignored: Any,
) -> tuple[Tensor, None]:
    """Causal attention within each row: query (1, Hq, T, D), key and value (1, Hkv, T, D) to (1, T, Hq, D).

    Rows are given by ``packing``, or by ``cu_seqlens`` alone (a packing made for each layer: slower). With
    ``packing.shared`` the tensors hold the C computed tokens instead of all T.
    """
    if packing is None:
        if cu_seqlens is None:
            raise ValueError("packed attention needs packing= (or cu_seqlens=) in the model's forward")
        packing = Packing.of(cu_seqlens, query.device)
    if query.shape[0] != 1:
        raise ValueError(f"packed attention takes one packed sequence; got a batch of {query.shape[0]}")
    if sliding_window is not None and packing.max_seqlen > sliding_window:
        raise LaurelError(
            f"the model's sliding_window={sliding_window} is shorter than a row of {packing.max_seqlen} tokens, which "
            "packed attention does not compute; lower data.max_prompt_length and data.max_response_length, or choose "
            "another model"
        )
    if softcap is not None or s_aux is not None:
        raise LaurelError(
            f"{type(module).__name__} wants soft-capped logits or attention sinks, which packed attention lacks"
        )
    q, k, v = (x.transpose(1, 2)[0] for x in (query, key, value))  # (T, H, D)
    if dropout and q.device.type != "cpu":
        raise LaurelError(f"attention_dropout={dropout}: packed attention on a GPU has no dropout; set it to 0")
    out = attend_rows(q, k, v, packing, scaling, dropout)
    return out[None], None


def attend_rows(q: Tensor, k: Tensor, v: Tensor, packing: Packing, scale: float | None, dropout: float = 0.0) -> Tensor:
    """Query (T, Hq, D), key and value (T, Hkv, D) to (T, Hq, D), causal within each row of ``packing``; C computed
    tokens instead of T with ``packing.shared``."""
    shared = packing.shared
    if shared is not None:
        q, k, v = (x.index_select(0, shared.source) for x in (q, k, v))
    out = _on_cpu(q, k, v, packing, scale, dropout) if q.device.type == "cpu" else _varlen(q, k, v, packing, scale)
    return out if shared is None else out.index_select(0, shared.kept)


def _on_cpu(q: Tensor, k: Tensor, v: Tensor, packing: Packing, scale: float | None, dropout: float) -> Tensor:
    if packing.padded is not None and packing.place is not None:
        q, k, v = (_Pad.apply(x, packing.padded, packing.place) for x in (q, k, v))
    outputs, start = [], 0
    for bucket in packing.buckets:
        end = start + bucket.rows * bucket.length
        a, b, c = (x[start:end].view(bucket.rows, bucket.length, *x.shape[1:]).transpose(1, 2) for x in (q, k, v))
        out = _causal(a, b, c, scale, dropout).transpose(1, 2)
        outputs.append(out.reshape(end - start, *out.shape[2:]))
        start = end
    output = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
    return output if packing.place is None else _Unpad.apply(output, packing.place)


def _causal(q: Tensor, k: Tensor, v: Tensor, scale: float | None, dropout: float) -> Tensor:
    gqa = q.shape[1] != k.shape[1]
    return scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, dropout_p=dropout, enable_gqa=gqa)


def _varlen(q: Tensor, k: Tensor, v: Tensor, packing: Packing, scale: float | None) -> Tensor:
    longest, cu = packing.max_seqlen, packing.cu_seqlens
    half = q.dtype in (torch.bfloat16, torch.float16)
    if half and not torch.is_grad_enabled():
        return flash(q, k, v, (cu, cu), (longest, longest), scale)[0]
    groups = q.shape[1] // k.shape[1]
    if groups > 1:
        # enable_gqa of varlen_attn is newer than varlen_attn itself
        k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    if half and varlen_attn is not None:
        return varlen_attn(q, k, v, cu, cu, longest, longest, scale=scale, window_size=(-1, 0))
    starts = packing.cu_seqlens.tolist()
    rows = []
    for start, end in pairwise(starts):
        a, b, c = (x[start:end].transpose(0, 1)[None] for x in (q, k, v))
        rows.append(_causal(a, b, c, scale, 0.0)[0].transpose(0, 1))
    return torch.cat(rows)


def flash(
    q: Tensor, k: Tensor, v: Tensor, cu: tuple[Tensor, Tensor], longest: tuple[int, int], scale: float | None
) -> tuple[Tensor, ...]:
    """PyTorch's flash attention on a GPU, causal from the ends of rows: query (Tq, Hq, D), key and value (Tk, Hkv, D),
    with the rows' bounds and longest row of each. The output, and what ``flash_gradients`` wants to know.

    The operators beneath ``varlen_attn``: unlike it they take fewer key heads than query heads in every version.
    """
    found = torch.ops.aten._flash_attention_forward(q, k, v, *cu, *longest, 0.0, True, False, scale=scale)
    return tuple(found[:4])


def flash_gradients(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    found: tuple[Tensor, ...],
    cu: tuple[Tensor, Tensor],
    longest: tuple[int, int],
    scale: float | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients in q, k and v; ``found`` is what ``flash`` returned."""
    out, normalizer, state, unused = found
    return torch.ops.aten._flash_attention_backward(
        grad, q, k, v, out, normalizer, *cu, *longest, 0.0, True, state, unused, scale=scale
    )


def register() -> None:
    """Make ``attn_implementation="packed"`` known to transformers."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    ALL_ATTENTION_FUNCTIONS.register(NAME, packed_attention)


def use(module: Any, implementation: str = NAME) -> None:
    """Switch a Hugging Face module to another registered attention; cheap, for a module shared with an engine."""
    if module.config._attn_implementation != implementation:
        module.config._attn_implementation = implementation
