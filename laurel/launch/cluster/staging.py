"""Models fetched from the hub on each node, before any GPU is held."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from laurel.config.load import read
from laurel.config.tree import Model
from laurel.models.hub import fetch, is_folder

Say = Callable[[str], object]


def hub_models(settings: Sequence[str]) -> list[Model]:
    """The models that the settings name by hub id, each once."""
    config = read(tuple(settings)).loaded.config
    models = [config.actor_rollout_ref.model, config.critic.model]
    named = {model.path: model for model in models if model.path is not None and not is_folder(model.path)}
    return list(named.values())


def stage(settings: Sequence[str], say: Say) -> None:
    """Fetch what is missing in this node's cache. Raises LaurelError naming the model and the cure."""
    for model in hub_models(settings):
        say(f"staging {model.path}")
        fetch(model, say=say)
