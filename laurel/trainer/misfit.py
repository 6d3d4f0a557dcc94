"""What does not fit a GPU however its memory is shared out: one problem that names the parts and the cures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from laurel.config.keys import value_of
from laurel.config.machine import gpu_memory
from laurel.config.tree import Config
from laurel.models.memory import CONTEXT, GIB
from laurel.trainer.fit import OFFLOAD, RECOMPUTE, Room, plan_memory, sequences_of, smallest
from laurel.trainer.memory import (
    Parts,
    listed,
    longest_sequence,
    models_of,
    resident,
    rollout_parts,
    stepping,
    updating,
)
from laurel.types import Problem

MODEL = "actor_rollout_ref.model.path"
OTHERS = ("share the model over more GPUs (trainer.n_gpus_per_node)", "use a smaller model")


def misfit(config: Config, room: Room) -> Problem | None:
    """The first phase that is too large with one sequence in the cache, or with the longest row alone in a forward.
    ``config`` has no nulls."""
    offloads = [f"leave {OFFLOAD[role]} to the plan" for role in room.roles if not value_of(config, OFFLOAD[role])]
    for role in () if config.trainer.val_only else room.roles:
        one = smallest(config, role)
        if not room.learns(one, role):
            updates = (updating(one, room.models, role, longest=True), stepping(one, room.models, role))
            own = max(updates, key=lambda parts: sum(parts.values()))
            again = [] if value_of(config, RECOMPUTE[role]) else [f"leave {RECOMPUTE[role]} to the plan"]
            cures = [*offloads, *again, "shorten data.max_response_length", *OTHERS]
            what = f"the {role}'s update on one row of {longest_sequence(config):,} tokens"
            return _problem(config, room, what, own, room.for_learning(config), cures)
    if not room.samples(config):
        share = config.actor_rollout_ref.rollout.gpu_memory_utilization
        lower = f"raise actor_rollout_ref.rollout.gpu_memory_utilization={share}"
        bound = share * room.free - 2.0 * room.models.actor.parameters < room.beside_resident(config)
        shorter = f"shorten prompt and response of {longest_sequence(config):,} tokens"
        cures = [lower] if bound else [*offloads, shorter, *OTHERS]
        own = rollout_parts(config, room.models, room.serving(config))
        return _problem(config, room, "sampling one sequence", own, room.for_sampling(config), cures)
    return None


def _problem(config: Config, room: Room, what: str, own: Parts, left: float, cures: Sequence[str]) -> Problem:
    held = resident(config, room.models)
    cure = (
        f"{what} takes {_gib(sum(own.values()))} GiB ({listed(own, 1)}) where {_gib(max(0.0, left))} are left of a GPU "
        f"with {_gib(room.free)} (usable {_gib(room.usable)}; always held: {listed(held, 1)}); {', or '.join(cures)}"
    )
    return Problem(MODEL, config.actor_rollout_ref.model.path, cure)


def _gib(size: float) -> str:
    return f"{size / GIB:.1f}"


def check(config: Config) -> list[Problem]:
    """The problem of this machine's GPU, if it has one and the models are here; the run may be meant for others."""
    memory = gpu_memory() if config.trainer.device == "cuda" else None
    models = None if memory is None else models_of(config)
    if memory is None or models is None:
        return []
    room = Room(models, memory - CONTEXT, sequences_of(config, 0))
    problem = misfit(plan_memory(config, models, room.free, room.sequences).config, room)
    return [] if problem is None else [replace(problem, machine=True)]
