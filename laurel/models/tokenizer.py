"""Tokenizers: loading, rendering chat messages to token ids, and the tokens that end a turn."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from laurel.config.tree import Model
from laurel.models.hub import fetch_tokenizer
from laurel.types import LaurelError

Messages = Sequence[Mapping[str, Any]]


def load_tokenizer(model: Model) -> Any:
    """The tokenizer of ``model.tokenizer_path``, or else of ``model.path``, with ``custom_chat_template`` if one is
    set.

    Raises LaurelError naming the path when the folder does not exist or the hub cannot give it.
    """
    from transformers import AutoTokenizer

    folder = fetch_tokenizer(model)
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=model.trust_remote_code)
    except (OSError, ValueError) as error:
        path = model.path if model.tokenizer_path is None else model.tokenizer_path
        raise LaurelError(
            f"tokenizer {path!r} could not be loaded ({_first_line(error)}); give a folder or a hub id that holds "
            "tokenizer.json and tokenizer_config.json"
        ) from error
    if model.custom_chat_template is not None:
        tokenizer.chat_template = model.custom_chat_template
    return tokenizer


def render_prompt(tokenizer: Any, messages: str | Messages, **template_kwargs: Any) -> list[int]:
    """Token ids of a prompt that the model is to answer.

    Chat messages go through the chat template with ``add_generation_prompt=True``; a tokenizer without a template gets
    the contents joined by newlines. A plain string is taken as it is, without a template. Messages
    that end with one of the assistant are continued inside that message.
    """
    if isinstance(messages, str):
        return list(tokenizer(messages)["input_ids"])
    if not tokenizer.chat_template:
        return list(tokenizer("\n".join(str(message["content"]) for message in messages))["input_ids"])
    open_turn = bool(messages) and messages[-1]["role"] == "assistant"
    kwargs = {"add_generation_prompt": not open_turn, "continue_final_message": open_turn, **template_kwargs}
    # transformers 5 returns a BatchEncoding unless told otherwise
    return list(tokenizer.apply_chat_template([dict(m) for m in messages], tokenize=True, return_dict=False, **kwargs))


def stop_token_ids(model_config: Any, generation_config: Any, tokenizer: Any) -> tuple[int, ...]:
    """All token ids that end a turn: the eos ids of the generation config, the model config and the tokenizer, sorted.

    Either config may be None. A model without any is an error, since its responses would never end by themselves.
    """
    found: set[int] = set()
    for holder in (generation_config, model_config, tokenizer):
        ids = None if holder is None else holder.eos_token_id
        if ids is not None:
            found.update(int(i) for i in (ids if isinstance(ids, Iterable) else (ids,)))
    if not found:
        raise LaurelError("the model names no end-of-turn token; set eos_token_id in its generation_config.json")
    return tuple(sorted(found))


def tokenizer_key(tokenizer: Any, **template_kwargs: Any) -> str:
    """A hash of everything that decides what ``render_prompt`` returns: vocabulary, rules, chat template and its
    arguments.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    rules = backend.to_str() if backend is not None else json.dumps(tokenizer.get_vocab(), sort_keys=True)
    parts = [type(tokenizer).__name__, rules, tokenizer.chat_template, tokenizer.special_tokens_map, template_kwargs]
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
