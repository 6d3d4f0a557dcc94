"""What a run will do, in words, before it does it: the answer of ``--dry-run``. Imports no torch."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from laurel.config.keys import leaves, show, value_of
from laurel.config.load import Loaded
from laurel.config.tree import Config
from laurel.data.table import DataError, count_rows
from laurel.trainer.cadence import total_steps
from laurel.trainer.memory_rows import memory_rows

Row = tuple[str, str]


def describe(loaded: Loaded) -> str:
    """The resolved settings, those given marked with ``*``, and the plan."""
    return f"{resolved_tree(loaded)}\n\n{plan(loaded)}"


def resolved_tree(loaded: Loaded) -> str:
    """Every setting as ``key = value`` by group, nulls derived; ``*`` marks what the user gave."""
    lines = ["Settings (* given, else default or derived)"]
    groups: dict[str, list[str]] = {}
    for path in leaves():
        groups.setdefault(path.rpartition(".")[0], []).append(path)
    for group, members in groups.items():
        lines.append(f"  {group}")
        for path in members:
            mark = "*" if path in loaded.given else " "
            lines.append(f"  {mark} {path.removeprefix(group + '.')} = {show(value_of(loaded.config, path))}")
    return "\n".join(lines)


def plan(loaded: Loaded) -> str:
    """Roles, placement, batches, steps, validation, files and memory."""
    config = loaded.config
    rows = [
        *_roles(config, loaded.given),
        *_placement(config),
        *_batches(config),
        *_steps(config),
        *_validation(config),
        *_files(config),
        *memory_rows(config, _validation_rows(config) or 0),
    ]
    width = max(len(name) for name, _ in rows)
    return "\n".join(["Plan", *(f"  {name:<{width}}  {text}" for name, text in rows)])


def _roles(config: Config, given: frozenset[str]) -> Iterator[Row]:
    part, algorithm = config.actor_rollout_ref, config.algorithm
    yield "algorithm", f"{algorithm.adv_estimator}, policy loss {part.actor.policy_loss.loss_mode}"
    yield "actor", f"{part.model.path}, lr {show(part.actor.optim.lr)}"
    if config.critic.enable:
        yield "critic", f"{config.critic.model.path}, lr {show(config.critic.optim.lr)}"
    else:
        yield "critic", "none"
    yield "reference", "the actor's first weights" if config.needs_reference else "none, since no KL is used"
    yield "KL in reward", _kl_in_reward(config, given)
    yield "KL in loss", f"weight {part.actor.kl_loss_coef}" if part.actor.use_kl_loss else "no"
    yield "old log-probs", _old_log_probs(config)
    yield "correction", _correction(config)
    yield "engine", part.rollout.name
    custom = config.reward.custom_reward_function
    yield "reward", f"{custom.name} of {custom.path}" if custom.path else f"by the data's {config.data.reward_fn_key}"


def _old_log_probs(config: Config) -> str:
    if config.algorithm.rollout_correction.bypass_mode:
        return "the engine's, without a forward (rollout_correction.bypass_mode)"
    if config.ratio_is_one:
        return "the update's own, without a forward: one update a step, so the ratio is 1"
    return "one forward of the actor before its updates"


def _correction(config: Config) -> str:
    settings = config.algorithm.rollout_correction
    parts = []
    if settings.rollout_is:
        mean = ", mean 1" if settings.rollout_is_batch_normalize else ""
        parts.append(f"weights by {settings.rollout_is} up to {settings.rollout_is_threshold}{mean}")
    if settings.rollout_rs and settings.rollout_rs_threshold:
        upper, lower = settings.rollout_rs_threshold, settings.rollout_rs_threshold_lower
        parts.append(f"kept by {settings.rollout_rs} ratio from {1 / upper if lower is None else lower:g} to {upper:g}")
    if settings.rollout_token_veto_threshold is not None:
        parts.append(f"no trajectory with a token ratio below {settings.rollout_token_veto_threshold:g}")
    return "; ".join(parts) if settings.corrects else "none"


def _kl_in_reward(config: Config, given: frozenset[str]) -> str:
    control = config.algorithm.kl_ctrl
    said = "algorithm.use_kl_in_reward" in given
    if config.algorithm.use_kl_in_reward:
        why = "use_kl_in_reward=True" if said else "kl_ctrl.kl_coef was given"
        return f"yes, since {why}: weight {control.kl_coef}, {control.type}"
    return f"no, since {'use_kl_in_reward=False' if said else 'kl_ctrl.kl_coef was not given'}"


def _placement(config: Config) -> Iterator[Row]:
    trainer = config.trainer
    ranks = trainer.n_gpus_per_node or 1
    kind = ("CPU process" if trainer.device == "cpu" else "GPU") + ("es" if trainer.device == "cpu" else "s") * (
        ranks > 1
    )
    nodes = f"{trainer.nnodes} node{'s' * (trainer.nnodes > 1)}"
    yield "placement", f"{nodes} x {ranks} {kind}; each runs every role"


def _batches(config: Config) -> Iterator[Row]:
    data, part = config.data, config.actor_rollout_ref
    ranks = config.trainer.nnodes * (config.trainer.n_gpus_per_node or 1)
    rows = data.train_batch_size * part.rollout.n
    share = math.ceil(rows / ranks)
    yield "step", f"{data.train_batch_size} prompts x {part.rollout.n} = {rows} trajectories, about {share} a rank"
    yield "tokens", f"prompt up to {data.max_prompt_length}, response up to {data.max_response_length}"
    yield (
        "actor updates",
        _updates(data.train_batch_size, part.actor.ppo_mini_batch_size, part.actor.ppo_epochs, part.rollout.n),
    )
    if config.critic.enable:
        mini, epochs = config.critic.ppo_mini_batch_size or data.train_batch_size, config.critic.ppo_epochs or 1
        yield "critic updates", _updates(data.train_batch_size, mini, epochs, part.rollout.n)
    filtered = config.algorithm.filter_groups
    if filtered.enable:
        most = f"at most {filtered.max_num_gen_batches}" if filtered.max_num_gen_batches else "as many as it takes"
        text = f"{data.train_batch_size} groups that differ in {filtered.metric}, from generation batches of "
        yield "filter groups", f"{text}{config.prompts_at_once} prompts, {most} a step"
    actor = part.actor
    if actor.use_dynamic_bsz:
        tokens = actor.ppo_max_token_len_per_gpu
        yield "forwards", "packed by tokens, see memory" if tokens is None else f"packed up to {tokens} tokens"
    else:
        more = "" if actor.use_dynamic_bsz is False else ", more together where they fit"
        yield "forwards", f"{actor.ppo_micro_batch_size_per_gpu} trajectories each{more}"


def _updates(prompts: int, mini: int, epochs: int, n: int) -> str:
    count = math.ceil(prompts / mini) * epochs
    return f"{count} a step, of {mini} prompts x {n}" + (f", {epochs} passes" if epochs > 1 else "")


def _steps(config: Config) -> Iterator[Row]:
    trainer = config.trainer
    if trainer.val_only:
        yield "steps", "none, since trainer.val_only=True"
        return
    rows = _count(config.data.train_files, config.data.train_max_samples)
    if rows is None:
        yield "steps", "unknown: the training files cannot be read here"
        return
    steps = total_steps(rows, config.data.train_batch_size, trainer.total_epochs, trainer.total_training_steps)
    source = "total_training_steps" if trainer.total_training_steps else f"total_epochs={trainer.total_epochs}"
    yield "steps", f"{steps}, from {source} and {rows} training rows (before over-long prompts are left out)"


def _validation(config: Config) -> Iterator[Row]:
    trainer, kwargs = config.trainer, config.actor_rollout_ref.rollout.val_kwargs
    if not config.data.val_files:
        yield "validation", "none, since data.val_files is empty"
        return
    rows = _validation_rows(config)
    when = [
        *(["before training"] if trainer.val_before_train or trainer.val_only else []),
        *([f"every {trainer.test_freq} steps"] if trainer.test_freq > 0 else []),
        *([] if trainer.val_only else ["at the end"]),
    ]
    how = "sampled" if kwargs.do_sample else "greedy"
    yield "validation", f"{'?' if rows is None else rows} rows x {kwargs.n}, {how}, {', '.join(when)}"


def _files(config: Config) -> Iterator[Row]:
    trainer = config.trainer
    when = f"every {trainer.save_freq} steps and at the end" if trainer.save_freq > 0 else "at the end"
    kept = "" if trainer.max_actor_ckpt_to_keep is None else f", the newest {trainer.max_actor_ckpt_to_keep} kept"
    yield "checkpoints", f"{trainer.default_local_dir}, {when}{kept}"
    resume = {
        "auto": "from the newest checkpoint there, if any",
        "disable": "no, a new start",
        "resume_path": f"from {trainer.resume_from_path}",
    }
    yield "resume", resume[trainer.resume_mode]
    yield "loggers", ", ".join(trainer.logger)


def _validation_rows(config: Config) -> int | None:
    return _count(config.data.val_files, config.data.val_max_samples)


def _count(files: Sequence[str], limit: int) -> int | None:
    try:
        rows = sum(count_rows(file) for file in files)
    except DataError:
        return None
    return min(rows, limit) if limit > 0 else rows
