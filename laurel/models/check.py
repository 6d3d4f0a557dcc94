"""What can be wrong with a model, found from its folder's files without importing torch or transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from laurel.config.tree import Config, Model
from laurel.models.served import untrained
from laurel.types import Problem

TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "tokenizer_config.json")
WEIGHT_FILES = ("*.safetensors", "*.safetensors.index.json", "*.bin")


def check(config: Config) -> list[Problem]:
    """Problems of the models that will be loaded. A hub id passes: the driver fetches it, or refuses it, before any
    rank is started (``models.load.inspect``)."""
    part = config.actor_rollout_ref
    if part.model.path is None:
        cure = "give a Hugging Face folder or a hub id, such as Qwen/Qwen2.5-0.5B-Instruct"
        return [Problem("actor_rollout_ref.model.path", None, cure)]
    problems = _check_model(config, "actor_rollout_ref.model", part.model, trains=True)
    if config.critic.enable and config.critic.model.path not in (None, part.model.path):
        problems += _check_model(config, "critic.model", config.critic.model, trains=False)
    return problems


def is_folder(path: str) -> bool:
    """Whether a model path is meant as a folder of this machine, and not as a hub id."""
    return path.startswith(("/", ".", "~")) or path.count("/") > 1 or Path(path).is_dir()


def _check_model(config: Config, where: str, model: Model, *, trains: bool) -> list[Problem]:
    problems: list[Problem] = []
    tokenizer = model.tokenizer_path if model.tokenizer_path is not None else model.path
    assert model.path is not None
    assert tokenizer is not None
    if is_folder(model.path):
        problems += _check_folder(config, where, model, Path(model.path).expanduser())
    folder = Path(tokenizer).expanduser()
    # A folder that does not exist is named once
    known = is_folder(tokenizer) and (model.tokenizer_path is not None or folder.is_dir())
    if trains and known and not any((folder / name).is_file() for name in TOKENIZER_FILES):
        field = f"{where}.tokenizer_path" if model.tokenizer_path is not None else f"{where}.path"
        cure = (
            f"holds no tokenizer ({' or '.join(TOKENIZER_FILES[:2])}); set {where}.tokenizer_path to a folder that does"
        )
        problems.append(Problem(field, tokenizer, cure))
    return problems


def _check_folder(config: Config, where: str, model: Model, folder: Path) -> list[Problem]:
    field = f"{where}.path"
    if not folder.is_dir():
        cure = "this folder does not exist; give an existing folder, or a hub id of the form owner/name"
        return [Problem(field, model.path, cure, machine=True)]
    try:
        described = json.loads((folder / "config.json").read_text())
    except (OSError, ValueError) as error:
        return [
            Problem(field, model.path, f"its config.json cannot be read ({error}); give a Hugging Face model folder")
        ]
    problems: list[Problem] = []
    if not any(next(folder.glob(pattern), None) for pattern in WEIGHT_FILES):
        problems.append(Problem(field, model.path, "holds no weights (*.safetensors); download the model whole"))
    named = described.get("architectures") or []
    if named and not any("CausalLM" in name or name.endswith("Model") for name in named):
        cure = f"is a {', '.join(named)}; Laurel trains causal language models (…ForCausalLM)"
        problems.append(Problem(field, model.path, cure))
    described |= model.override_config
    reason = untrained(described)
    if reason is not None:
        problems.append(Problem(field, model.path, reason))
    return problems + _check_length(config, where, described, model)


def _check_length(config: Config, where: str, described: dict[str, Any], model: Model) -> list[Problem]:
    data = config.data
    wanted = config.actor_rollout_ref.rollout.max_model_len or data.max_prompt_length + data.max_response_length
    longest = described.get("max_position_embeddings")
    if not isinstance(longest, int) or wanted <= longest:
        return []
    room = max(1, longest - data.max_prompt_length)
    cure = (
        f"prompt and response may take {wanted} tokens, but {where}.path={model.path} has "
        f"max_position_embeddings={longest}; lower data.max_response_length to {room} or less, or raise "
        f"{where}.override_config.max_position_embeddings if the model allows it"
    )
    return [Problem("data.max_response_length", data.max_response_length, cure)]
