"""Every room's check, together. Imports neither torch, transformers nor ray, so that it answers in a second."""

from __future__ import annotations

from collections.abc import Sequence

import laurel.algos.check
import laurel.config.check
import laurel.data.check
import laurel.learner.check
import laurel.models.check
import laurel.preflight.nodes
import laurel.rewards.check
import laurel.rollout.check
import laurel.tracking.check
import laurel.workers.check
from laurel.config.tree import Config
from laurel.models.hub import Say, fetch, is_folder
from laurel.types import Problem


def check_all(config: Config) -> list[Problem]:
    """All problems of a resolved configuration, each once, in the order in which one would mend them."""
    problems = [
        *laurel.data.check.check(config),
        *laurel.models.check.check(config),
        *laurel.config.check.check(config),
        *laurel.algos.check.check(config),
        *laurel.rewards.check.check(config, laurel.data.check.data_sources(config)),
        *laurel.rollout.check.check(config),
        *laurel.learner.check.check(config),
        *laurel.tracking.check.check(config),
        *laurel.workers.check.check(config),
        *laurel.preflight.nodes.check(config),
    ]
    return _each_once(problems)


def check_fetched(config: Config, *, say: Say = print) -> list[Problem]:
    """Fetch the models that are hub ids, once on this node, and look at them as at a folder; nothing is held meanwhile.

    Raises LaurelError if one cannot be fetched.
    """
    models = [config.actor_rollout_ref.model, *([config.critic.model] if config.critic.enable else [])]
    fetched = [fetch(model, say=say) for model in models if model.path is not None and not is_folder(model.path)]
    return _each_once([*laurel.models.check.check(config), *laurel.rollout.check.check(config)]) if fetched else []


def _each_once(problems: Sequence[Problem]) -> list[Problem]:
    first = {(problem.field, str(problem.value), problem.cure): problem for problem in reversed(problems)}
    return list(reversed(first.values()))
