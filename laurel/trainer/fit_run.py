"""The memory of a run, planned when its GPUs are known."""

from __future__ import annotations

from collections.abc import Callable

from laurel.config.tree import Config
from laurel.models.memory import GIB
from laurel.trainer.fit import Plan, Room, plan_memory, sequences_of, without_plan
from laurel.trainer.memory import models_of
from laurel.trainer.misfit import misfit
from laurel.types import LaurelError
from laurel.workers.fit import Fit


def fit_run(config: Config, free: int, *, validation_rows: int, say: Callable[[str], object]) -> Fit:
    """What ranks are told, for GPUs of which the smallest has ``free`` bytes; 0 are ranks on CPUs.

    Raises LaurelError for what fits in no way.
    """
    sequences = sequences_of(config, validation_rows)
    if config.trainer.device == "cpu":
        return Fit(config, sequences if config.trainer.val_only else None)
    models = models_of(config)
    if models is None:
        say("the sizes of this model's layers are not known: token budgets are fixed ones, and layers are recomputed")
        return Fit(without_plan(config), sequences)
    plan = plan_memory(config, models, free, sequences)
    problem = misfit(plan.config, Room(models, free, sequences))
    if problem is not None:
        raise LaurelError(str(problem))
    say(told(plan))
    return Fit(plan.config, sequences, plan.keep_logits, plan.predicted)


def told(plan: Plan) -> str:
    """One line at the start. Example: ``memory: 89.5 of 139.3 GiB at the fullest, in the actor's update; ...``."""
    fullest = max(plan.phases, key=lambda phase: phase.peak)
    served = plan.serving
    return (
        f"memory: {fullest.peak / GIB:.1f} of {plan.free / GIB:.1f} GiB at the fullest, in the phase {fullest.name}; "
        f"{served.slots:,} sequences at once over a cache of {served.cache_tokens:,} tokens"
    )
