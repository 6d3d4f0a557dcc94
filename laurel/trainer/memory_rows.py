"""The memory of a run in words, for ``--dry-run``: what each phase takes by part, and what was chosen and why."""

from __future__ import annotations

from collections.abc import Iterator

from laurel.config.keys import value_of
from laurel.config.machine import gpu_memory
from laurel.config.tree import Config
from laurel.models.memory import CONTEXT, GIB, Serving
from laurel.trainer.fit import BUDGET, OFFLOAD, PACKED, RECOMPUTE, Plan, Room, plan_memory, sequences_of
from laurel.trainer.memory import Models, budget_of, listed, longest_sequence, models_of, phases
from laurel.trainer.misfit import misfit

ASSUMED = 80 * GIB
Row = tuple[str, str]


def memory_rows(config: Config, validation_rows: int) -> Iterator[Row]:
    """Of one rank. On a GPU it is planned for one of this machine, or for one of 80 GiB where there is none."""
    models = models_of(config)
    if models is None:
        yield "memory", "unknown: the model's config.json is not on this machine, or of a kind that is not counted"
        return
    sequences = sequences_of(config, validation_rows)
    if config.trainer.device == "cpu":
        yield from _on_cpu(config, models, sequences)
        return
    found = gpu_memory()
    free = (found or ASSUMED) - CONTEXT
    plan = plan_memory(config, models, free, sequences)
    whose = "this machine's GPU" if found else "a GPU that is assumed, since none is here; the ranks plan for theirs"
    yield (
        "memory",
        f"{(found or ASSUMED) / GIB:.1f} GiB of {whose}; {plan.predicted / GIB:.1f} GiB in tensors at the fullest",
    )
    yield from ((f"  {phase.name}", f"{phase.peak / GIB:.2f} GiB: {listed(phase.parts)}") for phase in plan.phases)
    yield from _chosen(config, plan, models)
    problem = misfit(plan.config, Room(models, free, sequences))
    if problem is not None:
        yield "does not fit", problem.cure


def _chosen(config: Config, plan: Plan, models: Models) -> Iterator[Row]:
    served = plan.serving
    given = ", given" if config.actor_rollout_ref.rollout.max_num_seqs else ""
    most = f"of up to {longest_sequence(config):,} tokens, in a KV cache of {served.cache_tokens:,}"
    yield "slots", f"{served.slots:,} sequences at once{given}, {most}"
    if config.trainer.val_only:
        return
    roles = ("actor",) if models.critic is None else ("actor", "critic")
    used = {phase.name for phase in plan.phases}
    for name in (*roles, *(name for name in ("log-probs", "reference") if name in used)):
        yield f"{name} micro-batches", _size(plan, name)
    for role in roles:
        yield f"{role} recomputation", _answer(plan, RECOMPUTE[role])
        yield f"{role} offload", _answer(plan, OFFLOAD[role])
    yield "held logits", f"of {plan.keep_logits:,} tokens of a micro-batch of the actor, as far as memory goes"


def _size(plan: Plan, name: str) -> str:
    key = BUDGET[name]
    tokens, rows = budget_of(value_of(plan.config, key.rpartition(".")[0]))
    if rows is not None:
        return f"{rows:,} trajectories, given"
    reasons = [plan.reasons.get(key, "given"), *([plan.reasons[PACKED[name]]] if PACKED[name] in plan.reasons else [])]
    return f"up to {tokens:,} tokens: {'; '.join(reasons)}"


def _answer(plan: Plan, key: str) -> str:
    return f"{'yes' if value_of(plan.config, key) else 'no'}: {plan.reasons.get(key, 'given')}"


def _on_cpu(config: Config, models: Models, sequences: int) -> Iterator[Row]:
    slots = min(sequences, config.actor_rollout_ref.rollout.max_num_seqs or sequences)
    (rollout, *_) = phases(config, models, Serving(slots, slots * longest_sequence(config)))
    parts = dict(rollout.parts)
    cache = parts.pop("KV cache")
    total = sum(parts.values()) / GIB
    yield "memory", f"about {total:.2f} GiB a rank for weights and optimizer ({listed(parts)}), and activations"
    yield "KV cache", f"up to {cache / GIB:.2f} GiB a rank if every sequence of a step runs at once and to its limit"
