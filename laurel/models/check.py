"""What can be wrong with a model, found from its folder's files without importing torch or transformers."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path
from typing import Any

from laurel.config.tree import Config, Model
from laurel.models.fields import config_fields
from laurel.models.hub import is_folder, published_config
from laurel.models.served import untrained
from laurel.types import Problem

TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "tokenizer_config.json")
WEIGHT_FILES = ("*.safetensors", "*.safetensors.index.json", "*.bin")


def check(config: Config) -> list[Problem]:
    """Problems of the models that will be loaded, as far as their files are on this machine.

    A hub id that was never fetched passes here; preflight asks again once it is fetched, before anything is held.
    """
    part = config.actor_rollout_ref
    if part.model.path is None:
        cure = "give a Hugging Face folder or a hub id, such as Qwen/Qwen2.5-0.5B-Instruct"
        return [Problem("actor_rollout_ref.model.path", None, cure)]
    problems = _check_model(config, "actor_rollout_ref.model", part.model, trains=True)
    if config.critic.enable and config.critic.model.path not in (None, part.model.path):
        problems += _check_model(config, "critic.model", config.critic.model, trains=False)
    return problems


def _check_model(config: Config, where: str, model: Model, *, trains: bool) -> list[Problem]:
    problems: list[Problem] = []
    tokenizer = model.tokenizer_path if model.tokenizer_path is not None else model.path
    assert model.path is not None
    assert tokenizer is not None
    if is_folder(model.path):
        problems += _check_folder(where, model, Path(model.path).expanduser())
    if not problems:
        problems += _check_described(config, where, model)
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


def _check_folder(where: str, model: Model, folder: Path) -> list[Problem]:
    field = f"{where}.path"
    if not folder.is_dir():
        cure = "this folder does not exist; give an existing folder, or a hub id of the form owner/name"
        return [Problem(field, model.path, cure, machine=True)]
    if not (folder / "config.json").is_file():
        return [Problem(field, model.path, "holds no config.json; give a Hugging Face model folder")]
    return []


def _check_described(config: Config, where: str, model: Model) -> list[Problem]:
    """Problems that the model's own config shows, with the overrides; none if it is not on this machine yet."""
    field = f"{where}.path"
    try:
        published = published_config(model)
    except (OSError, ValueError) as error:
        cure = f"its config.json cannot be read ({error}); give a Hugging Face model folder"
        return [Problem(field, model.path, cure)]
    if published is None:
        return []
    problems = _check_weights(field, str(model.path)) + _check_overrides(where, model, published)
    fields = {**published, **model.override_config}
    named = fields.get("architectures") or []
    if named and not any("CausalLM" in name or name.endswith("Model") for name in named):
        cure = f"is a {', '.join(named)}; Laurel trains causal language models (…ForCausalLM)"
        problems.append(Problem(field, model.path, cure))
    reason = untrained(fields)
    if reason is not None:
        problems.append(Problem(field, model.path, reason))
    return problems + _check_length(config, where, fields, model)


def _check_weights(field: str, path: str) -> list[Problem]:
    """A folder must hold them; what the cache lacks of a hub id is fetched."""
    folder = Path(path).expanduser()
    if not is_folder(path) or any(next(folder.glob(pattern), None) for pattern in WEIGHT_FILES):
        return []
    return [Problem(field, path, "holds no weights (*.safetensors); download the model whole")]


def _check_overrides(where: str, model: Model, published: dict[str, Any]) -> list[Problem]:
    """Overrides of fields that the model's config class does not have."""
    known = config_fields(published) if model.override_config else None
    problems = []
    for name in sorted(model.override_config.keys() - known) if known is not None else ():
        close = get_close_matches(name, known or (), n=1)
        hint = f"; did you mean {close[0]}?" if close else "; check the name"
        cure = f"the config of {published['model_type']} has no such field{hint}"
        problems.append(Problem(f"{where}.override_config.{name}", model.override_config[name], cure))
    return problems


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
