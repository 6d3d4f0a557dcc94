"""Token budgets, recomputation, offload, slots and cache chosen to fit a GPU's memory. Imports no torch.

What the user gave is obeyed; each null is chosen by what ``memory.py`` predicts. A budget that is chosen holds for
micro-batches full to the last token without a shared prompt; what is printed is for rows as long as they may be.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from laurel.config.derive import CPU_MEMORY
from laurel.config.keys import replaced, value_of
from laurel.config.tree import Actor, Config, Critic
from laurel.models.memory import MOST_SLOTS, Serving, keepable, prefill_bytes, serving, usable
from laurel.trainer.memory import (
    Models,
    Phase,
    Role,
    budget_of,
    cache_parts,
    forward_tokens,
    logits_rows,
    longest_row,
    longest_sequence,
    phases,
    ranks_of,
    resident,
    rollout_parts,
    rows_of_update,
    stepping,
    updating,
)

MOST_TOKENS = 65_536
"""Larger forwards are no faster."""
FEWEST_TOKENS = 8_192
"""Smaller ones are slower than recomputation or offload."""
BUDGETS = (MOST_TOKENS, *(part << power for power in range(13, 7, -1) for part in (7, 6, 5, 4)))
"""65,536, 57,344, 49,152, 40,960, 32,768, ..., 1,024: four to each power of two."""
FAIR_CACHE = 0.25  # of what the slots of a step could use: with less, masters and moments make room for it
WORTH_IT = 1.25  # if the cache becomes larger by this factor at least

BUDGET = {
    "actor": "actor_rollout_ref.actor.ppo_max_token_len_per_gpu",
    "critic": "critic.ppo_max_token_len_per_gpu",
    "log-probs": "actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu",
    "reference": "actor_rollout_ref.ref.log_prob_max_token_len_per_gpu",
}
PACKED = {
    "actor": "actor_rollout_ref.actor.use_dynamic_bsz",
    "critic": "critic.use_dynamic_bsz",
    "log-probs": "actor_rollout_ref.rollout.log_prob_use_dynamic_bsz",
    "reference": "actor_rollout_ref.ref.log_prob_use_dynamic_bsz",
}
SIZE = {
    "actor": "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu",
    "critic": "critic.ppo_micro_batch_size_per_gpu",
    "log-probs": "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu",
    "reference": "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu",
}
RECOMPUTE = {
    "actor": "actor_rollout_ref.model.enable_gradient_checkpointing",
    "critic": "critic.model.enable_gradient_checkpointing",
}
OFFLOAD = {
    "actor": "actor_rollout_ref.actor.fsdp_config.optimizer_offload",
    "critic": "critic.fsdp_config.optimizer_offload",
}


@dataclass(frozen=True)
class Plan:
    """``config`` without nulls; ``free`` bytes of the GPU that it is for. ``reasons`` says of each key that was chosen
    why."""

    config: Config
    free: float
    phases: tuple[Phase, ...]
    serving: Serving
    keep_logits: int
    reasons: Mapping[str, str]

    @property
    def predicted(self) -> float:
        """Bytes of the fullest phase."""
        return max(phase.peak for phase in self.phases)


def without_plan(config: Config) -> Config:
    """The values of a CPU for what is null: for a model of unknown size, whose layers are recomputed to be safe."""
    values: dict[str, bool | int] = CPU_MEMORY | {RECOMPUTE["critic"]: True} | dict.fromkeys(PACKED.values(), False)
    return replaced(config, {key: value for key, value in values.items() if value_of(config, key) is None})


def sequences_of(config: Config, validation_rows: int) -> int:
    """The most sequences that one rank's engine is asked for at once, in training or validation."""
    part, ranks = config.actor_rollout_ref, ranks_of(config)
    validated = validation_rows * part.rollout.val_kwargs.n
    trained = 0 if config.trainer.val_only else config.prompts_at_once * part.rollout.n
    return max(1, -(-max(trained, validated) // ranks))


def plan_memory(config: Config, models: Models, free: float, sequences: int) -> Plan:
    """The plan for a GPU of which a process finds ``free`` bytes when it starts."""
    room = Room(models, free, sequences)
    reasons: dict[str, str] = {}

    def choose(key: str, value: bool | int, why: str) -> None:
        nonlocal config
        config = replaced(config, {key: value})
        reasons[key] = why

    for key, moved, why in offload(config, room):
        choose(key, moved, why)
    if not config.trainer.val_only:
        for name in (*room.roles, "log-probs", "reference"):
            if value_of(config, PACKED[name]) is None and value_of(config, SIZE[name]) is not None:
                choose(PACKED[name], *together(config, room, name))
        for role in room.roles:
            if value_of(config, RECOMPUTE[role]) is None:
                choose(RECOMPUTE[role], *recompute(config, room, role))
            if value_of(config, BUDGET[role]) is None:
                choose(BUDGET[role], *largest(config, room, role))
        for name in ("log-probs", "reference"):
            if value_of(config, BUDGET[name]) is None:
                choose(BUDGET[name], *largest_forward(config, room, name))
    config = without_plan(config)  # of roles that there are none of
    keep = kept_logits(config, room)
    served = room.serving(config)
    return Plan(config, free, tuple(phases(config, models, served, keep=keep)), served, keep, reasons)


@dataclass(frozen=True)
class Room:
    """What is free on a GPU for whom, under some settings."""

    models: Models
    free: float
    sequences: int

    @property
    def usable(self) -> float:
        return usable(self.free)

    @property
    def roles(self) -> tuple[Role, ...]:
        """Those that are trained."""
        return ("actor",) if self.models.critic is None else ("actor", "critic")

    def beside_resident(self, config: Config) -> float:
        return self.usable - sum(resident(config, self.models).values())

    def for_sampling(self, config: Config) -> float:
        """Bytes for the KV cache and all that decoding needs; gpu_memory_utilization counts the engine's weights."""
        share = config.actor_rollout_ref.rollout.gpu_memory_utilization
        return min(self.beside_resident(config), share * self.free - 2.0 * self.models.actor.parameters)

    def for_learning(self, config: Config) -> float:
        """Bytes for what an update or a forward takes beside what is always there."""
        left = self.beside_resident(config)
        if config.actor_rollout_ref.rollout.free_cache_engine:
            return left
        return left - sum(cache_parts(config, self.models, self.serving(config)).values())

    def serving(self, config: Config) -> Serving:
        rollout, shape = config.actor_rollout_ref.rollout, self.models.actor
        return serving(
            memory=self.for_sampling(config),
            sequences=self.sequences,
            max_len=longest_sequence(config),
            max_slots=rollout.max_num_seqs,
            token_bytes=2 * shape.cache_per_token,
            vocabulary=shape.vocabulary,
            logits=logits_rows(config),
            prefill=prefill_bytes(shape, rollout.max_num_batched_tokens),
            paged=shape.fast,
        )

    def sampling(self, config: Config) -> float:
        """Bytes that sampling takes of ``for_sampling``; more than that if not even one sequence fits."""
        return sum(rollout_parts(config, self.models, self.serving(config)).values())

    def learning(self, config: Config, role: Role, *, longest: bool = True) -> float:
        """Bytes that an update takes of ``for_learning``."""
        update = sum(updating(config, self.models, role, longest=longest).values())
        return max(update, sum(stepping(config, self.models, role).values()))

    def samples(self, config: Config) -> bool:
        return self.sampling(config) <= self.for_sampling(config)

    def learns(self, config: Config, role: Role, *, longest: bool = True) -> bool:
        return self.learning(config, role, longest=longest) <= self.for_learning(config)


# --- one choice each --------------------------------------------------------------------------------------------------


def offload(config: Config, room: Room) -> Iterator[tuple[str, bool, str]]:
    """Masters and moments stay on the GPU if a fair cache and updates of a fair size fit beside them."""
    nulls = [OFFLOAD[role] for role in room.roles if value_of(config, OFFLOAD[role]) is None]
    staying, moved = (replaced(config, dict.fromkeys(nulls, value)) for value in (False, True))
    why = _short_of_cache(staying, moved, room) or _short_of_update(staying, room)
    for key in nulls:
        yield key, why is not None, why or "all that a step needs fits beside masters and moments"


def _short_of_cache(staying: Config, moved: Config, room: Room) -> str | None:
    """Whether the cache has less than a fair part of what a step could use, and offload would make it larger."""
    slots = staying.actor_rollout_ref.rollout.max_num_seqs or min(room.sequences, MOST_SLOTS)
    wished = int(FAIR_CACHE * slots * longest_sequence(staying))
    cache, larger = (room.serving(one).cache_tokens for one in (staying, moved))
    if room.samples(staying) and (cache >= wished or larger < WORTH_IT * cache):
        return None
    return f"beside masters and moments the KV cache would have no room for {wished:,} tokens"


def _short_of_update(staying: Config, room: Room) -> str | None:
    for role in () if staying.trainer.val_only else room.roles:
        if not room.learns(least(staying, role), role, longest=size_of(staying, role) is None):
            return f"too little of the {role}'s update would fit beside masters and moments"
    return None


def least(config: Config, role: Role) -> Config:
    """With the smallest micro-batches that are worth it, recomputed, where the settings do not say otherwise."""
    values = {BUDGET[role]: enough(config, role), RECOMPUTE[role]: True}
    return replaced(config, {key: value for key, value in values.items() if value_of(config, key) is None})


def enough(config: Config, role: Role) -> int:
    """Tokens of micro-batches that are worth it: FEWEST_TOKENS, if an update has so many, and at least one row."""
    row = longest_row(config)
    return max(row, min(FEWEST_TOKENS, rows_of_update(config, section_of(config, role)) * row))


def smallest(config: Config, role: Role) -> Config:
    """With one row of the longest in each forward, whatever the settings say: memory that runs out leads there."""
    prefix = BUDGET[role].rpartition(".")[0]
    dynamic, size = f"{prefix}.use_dynamic_bsz", f"{prefix}.ppo_micro_batch_size_per_gpu"
    return replaced(config, {BUDGET[role]: longest_row(config), dynamic: True, size: None})


def size_of(config: Config, role: Role) -> int | None:
    """Tokens of a micro-batch where the settings say it."""
    tokens, rows = budget_of(section_of(config, role))
    return tokens if rows is None else rows * longest_row(config)


def section_of(config: Config, role: Role) -> Actor | Critic:
    return config.actor_rollout_ref.actor if role == "actor" else config.critic


def together(config: Config, room: Room, name: str) -> tuple[bool, str]:
    """Whether at least twice the trajectories that were given fit in one forward, which is faster and gives the same
    gradient."""
    size = value_of(config, SIZE[name])
    packed = replaced(config, {PACKED[name]: True})
    if name in room.roles:
        role: Role = "actor" if name == "actor" else "critic"
        most = _largest(replaced(packed, {RECOMPUTE[role]: bool(value_of(config, RECOMPUTE[role]))}), room, role)
    else:
        most, _ = largest_forward(packed, room, name)
    most = value_of(config, BUDGET[name]) or most
    row = longest_row(config)
    if most < 2 * size * row:
        return False, f"{size} trajectories were asked for, and twice as many would not fit"
    return True, f"{size} trajectories were asked for, and {most // row} fit: computed together, with the same gradient"


def recompute(config: Config, room: Room, role: Role) -> tuple[bool, str]:
    """Only if without it a given micro-batch would not fit, or only ones that are smaller than what is worth it."""
    plain = replaced(config, {RECOMPUTE[role]: False})
    given = size_of(config, role)
    if given is not None:
        fits = room.learns(plain, role, longest=False)
        return not fits, f"micro-batches of {given:,} tokens {'fit' if fits else 'would not fit'} with all activations"
    most = _largest(plain, room, role)
    return most < enough(config, role), f"with all activations micro-batches of {most:,} tokens fit"


def largest(config: Config, room: Room, role: Role) -> tuple[int, str]:
    """The largest micro-batches of an update, and never less than the longest row."""
    tokens = max(_largest(config, room, role), longest_row(config))
    return tokens, _why(tokens, longest_row(config))


def _largest(config: Config, room: Room, role: Role) -> int:
    """0 if not even the longest row fits."""
    for tokens in budgets(config):
        if room.learns(replaced(config, {BUDGET[role]: tokens}), role):
            return tokens
    return 0


def budgets(config: Config) -> Iterator[int]:
    """From the largest on; the last is the longest row."""
    row = longest_row(config)
    yield from (tokens for tokens in BUDGETS if tokens > row)
    yield row


def _why(tokens: int, row: int) -> str:
    if tokens >= MOST_TOKENS:
        return "larger ones are no faster"
    return "the most that fit" if tokens > row else "the longest row"


def largest_forward(config: Config, room: Room, name: str) -> tuple[int, str]:
    """The largest micro-batches of the phase ``name``, which makes no gradients."""
    served, row = room.serving(config), longest_row(config)
    for tokens in budgets(config):
        tried = phases(replaced(config, {BUDGET[name]: tokens}), room.models, served, longest=True)
        if all(phase.peak <= room.usable for phase in tried if phase.name == name):
            return tokens, _why(tokens, row)
    return row, _why(row, row)


def kept_logits(config: Config, room: Room) -> int:
    """Tokens whose logits fit into what the fullest update leaves."""
    if config.trainer.val_only:
        return 0
    spare = room.for_learning(config) - room.learning(config, "actor")
    sampled = forward_tokens(config, config.actor_rollout_ref.actor, longest=True).sampled
    return keepable(room.models.actor, sampled, spare)
