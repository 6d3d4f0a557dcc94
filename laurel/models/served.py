"""Which decoder models Laurel can train and serve, read from a model's config without torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# A cache position means the same key whatever else is in the batch only if the rope does not depend on the length seen.
_LENGTH_DEPENDENT_ROPE = ("dynamic", "longrope")
_SOFTCAPS = ("attn_logit_softcapping", "attn_logit_softcap")

# What some models do to logits after the head, and the values at which that is nothing.
_AFTER_THE_HEAD: dict[str, tuple[Any, ...]] = {
    "final_logit_softcapping": (None, 0, 0.0),
    "logits_scaling": (None, 1, 1.0),
    "logit_scale": (None, 1, 1.0),
    "lm_head_multiplier": (None, 1, 1.0),
    "dim_model_base": (None,),
}
_LAYER_TYPES = {"full_attention", "sliding_attention"}


def untrained(config: Mapping[str, Any]) -> str | None:
    """Why packed attention or the chunked head would compute a model with this ``config.json`` wrongly; None if not."""
    family = config.get("model_type", "this model")
    for name, neutral in _AFTER_THE_HEAD.items():
        if config.get(name) not in neutral:
            return (
                f"{family} has {name}={config[name]!r}, which changes logits after the head; the log-prob head does "
                "not compute that: choose another model"
            )
    other = sorted(set(config.get("layer_types") or ()) - _LAYER_TYPES)
    if other or config.get("is_encoder_decoder"):
        what = f"layers of type {', '.join(other)}" if other else "an encoder"
        return f"{family} has {what}; only decoders made of attention layers can be trained: choose another model"
    return None


def unserved(config: Mapping[str, Any], max_len: int) -> str | None:
    """Why the native engine cannot serve a model with this ``config.json`` up to ``max_len`` tokens; None if it can."""
    family = config.get("model_type", "this model")
    if config.get("is_encoder_decoder"):
        return f"{family} is an encoder-decoder; the native engine serves decoder-only models"
    layer_types = config.get("layer_types") or ()
    strange = sorted(set(layer_types) - {"full_attention", "sliding_attention"})
    if strange:
        return f"{family} has layers of type {', '.join(strange)}; the native engine serves full attention only"
    window = _window(config, layer_types)
    if window is not None and window < max_len:
        return (
            f"{family} has sliding_window={window}, shorter than max_len={max_len}, which the native engine does not "
            f"compute; use at most {window} tokens of prompt plus response, or another model"
        )
    for name in _SOFTCAPS:
        if config.get(name) is not None:
            return f"{family} has {name}={config[name]}, which the native engine does not compute; use another model"
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    kind = rope.get("rope_type") or rope.get("type") if isinstance(rope, Mapping) else None
    trained = (rope.get("original_max_position_embeddings") if isinstance(rope, Mapping) else None) or config.get(
        "original_max_position_embeddings", config.get("max_position_embeddings", 0)
    )
    if kind in _LENGTH_DEPENDENT_ROPE and max_len > trained:
        return (
            f"{family} has {kind} rope, whose positions change beyond {trained} tokens; the native engine would mix "
            f"both: use at most {trained} tokens of prompt plus response (asked: {max_len})"
        )
    return None


def _window(config: Mapping[str, Any], layer_types: Any) -> int | None:
    """The shortest window that some layer really uses, in tokens."""
    window = config.get("sliding_window")
    if window is None or config.get("use_sliding_window") is False:
        return None
    if layer_types and "sliding_attention" not in layer_types:
        return None
    return int(window)
