"""How much GPU memory a model takes, from the fields of its config.json: parameters, what training holds of each token,
logits, keys and values. Pure arithmetic that imports no torch.

The counts are those of the code in this room, allocation by allocation; tests/unit/models/test_memory.py runs that code
on tensors without data and compares. H, I and V are the sizes of hidden states, MLP and vocabulary, Hq and Hkv the
heads of queries and keys, D the size of a head.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from laurel.config.tree import Rollout

GIB = 2**30
FAST_FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "gemma")
"""Families whose layers models/layer.py computes; others go through their own forward, which holds more."""
_TIED = {"gemma": True}  # where config.json does not say
_HEAD_DIM = {"gemma": 256, "qwen3": 128}
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")

CHUNK_ELEMENTS, TILE = 5 << 28, 1024  # as in models/heads.py
PAGE = 64  # tokens, as in models/paged.py
MOST_SLOTS = 1024  # beyond it a longer batch makes a decoding step longer in proportion
_FILL = 0.6  # of max_len that a sequence holds on average, where pages are taken as they are needed
_GRAPHS = 6  # logits of the graphs of all batch sizes together, in those of the largest
_SORTED = 10  # what top-k and top-p take: probabilities, the sorted ones with their ids, and sums in float64
_OTHER_LAYERS = 1.15  # what unknown layers hold, in what a plain layer's own forward does

OUTSIDE = GIB  # compiled kernels, workspaces of libraries and graphs, which the allocator of tensors does not see
CONTEXT = GIB // 2  # of the driver, for each process
_WHOLE = 0.92  # of what is left: the rest is lost between blocks of different sizes


def usable(free: float) -> float:
    """Bytes that tensors may take on a GPU of which a process finds ``free`` bytes when it starts."""
    return max(0.0, _WHOLE * (free - OUTSIDE))


@dataclass(frozen=True)
class Shape:
    """What a config.json says of a decoder. ``layer``: parameters of one layer; ``head_norms``: queries and keys are
    normalized (Qwen3); ``fast``: models/layer.py computes its layers."""

    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    tied: bool
    head_norms: bool
    layer: int
    fast: bool = True

    @staticmethod
    def of(fields: Mapping[str, Any]) -> Shape:
        """Raises KeyError for a config without the usual fields, ValueError for one with experts."""
        if any(fields.get(name) for name in _EXPERTS):
            raise ValueError("layers of experts are not counted")
        family = str(fields.get("model_type", ""))
        hidden, heads = fields["hidden_size"], fields["num_attention_heads"]
        kv_heads = fields.get("num_key_value_heads") or heads
        dim = fields.get("head_dim") or _HEAD_DIM.get(family) or hidden // heads
        head_norms = family == "qwen3"
        tied = fields.get("tie_word_embeddings")
        return Shape(
            hidden=hidden,
            intermediate=fields["intermediate_size"],
            layers=fields["num_hidden_layers"],
            heads=heads,
            kv_heads=kv_heads,
            head_dim=dim,
            vocabulary=fields["vocab_size"],
            tied=_TIED.get(family, False) if tied is None else bool(tied),
            head_norms=head_norms,
            layer=_layer_parameters(fields, family, heads * dim, kv_heads * dim) + (2 * dim if head_norms else 0),
            fast=family in FAST_FAMILIES and not fields.get("mlp_bias"),
        )

    @property
    def embedding(self) -> int:
        return self.vocabulary * self.hidden

    @property
    def backbone(self) -> int:
        """Parameters without the head: those of a critic, but for its scalar head."""
        return self.embedding + self.layers * self.layer + self.hidden

    @property
    def parameters(self) -> int:
        """Of the causal model; a head that is tied to the embedding has none of its own."""
        return self.backbone + (0 if self.tied else self.embedding)

    @property
    def cache_per_token(self) -> int:
        """Numbers of all keys and values of one token."""
        return 2 * self.layers * self.kv_heads * self.head_dim


def _layer_parameters(fields: Mapping[str, Any], family: str, wide: int, narrow: int) -> int:
    hidden, intermediate = fields["hidden_size"], fields["intermediate_size"]
    count = 2 * hidden * (wide + narrow) + 3 * hidden * intermediate + 2 * hidden
    if family == "qwen2":  # queries, keys and values alone have a bias, whatever the config says
        count += wide + 2 * narrow
    elif fields.get("attention_bias"):
        count += wide + 2 * narrow + hidden
    return count + (2 * intermediate + hidden if fields.get("mlp_bias") else 0)


@dataclass(frozen=True)
class Tokens:
    """Of one forward: ``computed`` C, ``rows`` T (prompts that rows share are computed once, so C <= T), and
    ``sampled`` R, which go through the head."""

    computed: int
    rows: int
    sampled: int


# --- training ---------------------------------------------------------------------------------------------------------


def layer_held(shape: Shape, tokens: Tokens) -> float:
    """Bytes that one layer holds from forward to backward, bf16 with float32 sums.

    Per computed token: both sums and their norms 8 H + 4 H, queries and attended values 4 Hq D, gate, up and product
    6 I, scales; per row token keys and values 4 Hkv D. Example: Qwen2.5-0.5B (H 896, I 4864, 14 and 2 heads of 64) with
    C = T: 10,752 + 3,584 + 29,184 + 64 + 512 = 44,096 bytes a token, 1.06 MB over its 24 layers.
    """
    hidden, wide = shape.hidden, shape.heads * shape.head_dim
    narrow, normed = shape.kv_heads * shape.head_dim, shape.heads + shape.kv_heads if shape.head_norms else 0
    if shape.fast:
        own = 12 * hidden + 4 * wide + 6 * shape.intermediate + 4 * shape.heads + 8 + (8 * shape.head_dim + 4) * normed
        return tokens.computed * own + tokens.rows * 4 * narrow
    # transformers' own: bf16 sums, keys and values repeated for all heads, the activation kept beside the gate
    own = 16 * hidden + 8 + 8 * shape.intermediate + (6 * shape.head_dim + 4) * normed
    shared = 2 * wide if tokens.rows > tokens.computed else 0
    return _OTHER_LAYERS * (tokens.computed * (own + shared) + tokens.rows * (8 * wide + 4 * shape.heads))


def _around_layers(shape: Shape, tokens: Tokens) -> float:
    """The last sum, its norm, rotary tables, and the states that go into the head."""
    own = 8 * shape.hidden + 4 * shape.head_dim + 4
    return tokens.computed * own + 2 * shape.hidden * tokens.sampled


def update_parts(
    shape: Shape, tokens: Tokens, *, recompute: bool, keep: int = 0, value_model: bool = False
) -> dict[str, float]:
    """Activations and logits of one forward and backward at the moment that takes most: while the head goes back, or
    the last layer. ``recompute``: layers hold their input alone; ``keep``: tokens whose logits are held."""
    hidden, inputs = shape.hidden, (4 if shape.fast else 2) * shape.hidden * tokens.computed
    one = layer_held(shape, tokens)
    layers = shape.layers * (inputs if recompute else one)
    at_head = {"activations": layers + _around_layers(shape, tokens)}
    if value_model:
        at_head["activations"] += 12 * hidden * tokens.sampled
    else:
        at_head["logits"] = logits_bytes(shape, tokens.sampled, keep=keep)
    going_back = (4 * hidden + (4 if shape.fast else 8) * shape.intermediate) * tokens.computed
    at_layer = {"activations": layers + going_back + (max(0.0, one - inputs) if recompute else 0)}
    if shape.tied and not value_model:
        at_layer["logits"] = 2.0 * shape.embedding  # the head's gradient, until the embedding's joins it
    return max(at_head, at_layer, key=lambda parts: sum(parts.values()))


def chunk_tokens(vocabulary: int) -> int:
    """Tokens that go through the head together. Example: 8,192 for 151,936 words."""
    return max(1, CHUNK_ELEMENTS // vocabulary // TILE) * TILE


def logits_bytes(shape: Shape, sampled: int, *, keep: int = 0) -> float:
    """Of the head, forward and backward, its gradients included.

    A chunk of n tokens is 4 V n of logits and going back 2 V n of their gradient; the weight's gradient is 4 V H.
    Logits of the first ``keep`` tokens stay meanwhile, as far as whole chunks go. Example: 0.5B, 8,192 tokens of which
    none are kept: 6 * 151,936 * 8,192 + 4 * 151,936 * 896 + 2 * 896 * 8,192 = 8.03e9 bytes.
    """
    chunk = chunk_tokens(shape.vocabulary)
    size = min(chunk, sampled)
    kept = sampled if keep >= sampled else keep // chunk * chunk
    forward = 4 * shape.vocabulary * (kept + (size if kept < sampled else 0))
    back = shape.vocabulary * max(4 * kept + 2 * size, 6 * size)
    return max(forward, back + 4 * shape.embedding + 2 * shape.hidden * sampled)


def keepable(shape: Shape, sampled: int, spare: float) -> int:
    """Tokens whose logits can be held in ``spare`` bytes beyond the head's need without; all ``sampled``, or chunks."""
    chunk, least = chunk_tokens(shape.vocabulary), logits_bytes(shape, sampled)
    counts = [sampled, *(chunk * number for number in range((sampled - 1) // chunk, 0, -1))]
    return next((count for count in counts if logits_bytes(shape, sampled, keep=count) - least <= spare), 0)


def forward_parts(shape: Shape, tokens: Tokens, *, head: bool = True, squares: bool = False) -> dict[str, float]:
    """A forward without gradients: one layer at a time, then the head. ``squares``: gradients in the logits are
    measured too (heads.logit_grad_squares)."""
    wide, narrow = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    layer = 12 * shape.hidden + 4 * wide + 4 * narrow + (6 if shape.fast else 8) * shape.intermediate
    layer += 4 * shape.head_dim
    if shape.head_norms:
        layer += 12 * (wide + narrow)
    at_layer = {"activations": float(tokens.computed * layer + (tokens.rows - tokens.computed) * 4 * narrow)}
    size = min(chunk_tokens(shape.vocabulary), tokens.sampled)
    logits = float((10 if squares else 4) * shape.vocabulary * size if head else 0)
    at_head = {"activations": float(6 * shape.hidden * tokens.sampled), "logits": logits}
    return max(at_layer, at_head, key=lambda parts: sum(parts.values()))


# --- sampling ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Serving:
    """How an engine samples: sequences decoded at once, and tokens that its KV cache has room for."""

    slots: int
    cache_tokens: int


def logits_of_a_slot(rollout: Rollout, *, validates: bool) -> float:
    """Rows of logits held for each slot: one in the graphs, and one in the step that runs before it is captured or two
    of each prompt that is admitted (samples share theirs). With top-k or top-p each graph keeps its own, and what is
    sorted comes on top."""
    val = rollout.val_kwargs
    cuts = rollout.top_p < 1 or rollout.top_k > 0
    if cuts or (validates and val.do_sample and (val.top_p < 1 or val.top_k > 0)):
        return float(_GRAPHS + _SORTED)
    samples = min(rollout.n, val.n) if validates else rollout.n
    return 1 + max(1.0, 2 / samples)


def serving_bytes(vocabulary: int, logits: float, slots: int, max_len: int, prefill: float) -> dict[str, float]:
    """What sampling takes beside weights and cache: ``logits`` rows for each slot (above), the tokens and
    log-probabilities sampled so far (8 bytes each), and ``prefill`` bytes of prompts' forwards."""
    return {"logits": 4.0 * vocabulary * slots * logits, "sampling": prefill + 8.0 * slots * max_len}


def prefill_bytes(shape: Shape, tokens: int) -> float:
    """The serving forward over ``tokens`` prompt tokens."""
    wide, narrow = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    return tokens * (8 * shape.hidden + 2 * wide + 4 * narrow + 6 * shape.intermediate)


def serving(
    *,
    memory: float,
    sequences: int,
    max_len: int,
    max_slots: int | None,
    token_bytes: int,
    vocabulary: int,
    logits: float,
    prefill: float,
    paged: bool = True,
) -> Serving:
    """Slots and cache for up to ``sequences`` sequences of up to ``max_len`` tokens in ``memory`` bytes.

    ``max_slots`` given is obeyed. Else there are no more slots than sequences, than MOST_SLOTS, and than sequences that
    fit when each is 60 % of its longest (whole, where a cache is not ``paged``). The cache holds one whole sequence at
    least, whether that fits or not, and never more than its slots can use.

    Example: memory for 1,000 tokens beside the rest, and sequences of up to 100 tokens: 16 slots.
    """
    whole = -(-max_len // PAGE) * PAGE
    each = sum(serving_bytes(vocabulary, logits, 1, max_len, 0.0).values())
    slots = max_slots
    if slots is None:
        fit = (memory - prefill) // (each + token_bytes * max_len * (_FILL if paged else 1.0))
        slots = max(1, min(sequences, MOST_SLOTS, int(fit)))
    room = int((memory - prefill - slots * each) // token_bytes)
    return Serving(slots, max(whole, min(room, slots * whole)))
