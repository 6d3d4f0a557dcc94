"""Tokenizer and chat template: that messages are rendered, and that an answer ends where the engine stops."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from laurel.config.tree import Model
from laurel.models.hub import local_folder, published_config
from laurel.models.tokenizer import render_prompt, stop_token_ids
from laurel.preflight.doctor.finding import Finding, of_error
from laurel.types import LaurelError, Prompt

_ANSWER = "42"


def examine(tokenizer: Any, model: Model, prompts: Sequence[Prompt], kwargs: Mapping[str, Any]) -> list[Finding]:
    """``kwargs`` are the template's. ``prompts`` may be any rows of the data."""
    found = _vocabulary(tokenizer, model)
    try:
        stops = stop_token_ids(_eos(published_config(model)), _eos(_generation_config(model)), tokenizer)
    except LaurelError as error:
        return [*found, of_error("tokenizer", "", error)]
    except (OSError, ValueError) as error:
        what = f"actor_rollout_ref.model.path={model.path}: its configuration cannot be read ({error})"
        return [*found, Finding("tokenizer", "error", "", what, "download the model whole")]
    if not prompts:
        return found
    if not tokenizer.chat_template:
        if any(len(prompt.messages) > 1 for prompt in prompts):
            what = "the tokenizer has no chat template, so messages are joined by newlines, without their roles"
            cure = "set actor_rollout_ref.model.custom_chat_template, or use the model's instruct version"
            found.append(Finding("tokenizer", "warning", "", what, cure))
        return found
    return found + _end_of_turn(tokenizer, prompts[0], stops, kwargs)


def _vocabulary(tokenizer: Any, model: Model) -> list[Finding]:
    try:
        rows = {**(published_config(model) or {}), **model.override_config}.get("vocab_size")
    except (OSError, ValueError):  # the checks of the model name it
        return []
    if not isinstance(rows, int) or len(tokenizer) <= rows:
        return []
    path = model.tokenizer_path or model.path
    what = f"the tokenizer of {path} has {len(tokenizer):,} tokens, but the model {rows:,} embeddings"
    return [Finding("tokenizer", "error", "", what, "use the tokenizer that came with the model")]


def _end_of_turn(tokenizer: Any, prompt: Prompt, stops: Sequence[int], kwargs: Mapping[str, Any]) -> list[Finding]:
    """Whether the template closes an answer by a token that ends sampling.

    A base model with its family's chat template often does not: it ends turns with a token that its configuration
    does not call an end, so that responses go on until they are cut.
    """
    try:
        asked = render_prompt(tokenizer, prompt.messages, **kwargs)
        answered = render_prompt(
            tokenizer,
            [*prompt.messages, {"role": "assistant", "content": _ANSWER}, {"role": "user", "content": "?"}],
            **kwargs,
        )
    except Exception as error:  # a template is a program of its own, and may refuse these messages by any error
        what = f"the chat template cannot render an answer ({type(error).__name__}: {str(error).strip()[:200]})"
        cure = "look at data.apply_chat_template_kwargs and at the template's rules on roles"
        return [Finding("tokenizer", "note", "", what, cure)]
    after = _after(answered, asked)
    if any(token in stops for token in after):
        return []
    names = tokenizer.convert_ids_to_tokens(list(stops))
    ends = tokenizer.decode(list(after[:8]))
    what = f"the chat template closes an answer by {ends!r}, and sampling ends at {' or '.join(map(str, names))} alone"
    cure = (
        "responses would go on to data.max_response_length: put the token's id into eos_token_id of the model's "
        "generation_config.json, or use the instruct version"
    )
    return [Finding("tokenizer", "warning", "", what, cure)]


def _after(answered: Sequence[int], asked: Sequence[int]) -> Sequence[int]:
    """What follows the prompt in the rendered conversation."""
    same = 0
    while same < min(len(answered), len(asked)) and answered[same] == asked[same]:
        same += 1
    return answered[same:]


def _eos(fields: Mapping[str, Any] | None) -> Any:
    return SimpleNamespace(eos_token_id=(fields or {}).get("eos_token_id"))


def _generation_config(model: Model) -> dict[str, Any]:
    folder = None if model.path is None else local_folder(model.path)
    file = None if folder is None else Path(folder) / "generation_config.json"
    return dict(json.loads(file.read_text(encoding="utf-8"))) if file is not None and file.is_file() else {}
