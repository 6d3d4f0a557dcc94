"""What the settings of a run name, tried on this machine: tokenizer, chat template, data sets, reward function."""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from laurel.config.tree import Config
from laurel.data.prompts import load_prompts
from laurel.data.table import DataError, count_rows
from laurel.models.hub import published_config
from laurel.models.memory import Shape
from laurel.models.tokenizer import load_tokenizer, render_prompt, tokenizer_key
from laurel.preflight.doctor import reward, template
from laurel.preflight.doctor.finding import Finding, of_error
from laurel.preflight.doctor.paths import Named
from laurel.rewards.reward_fn import RewardError, load_reward_fn
from laurel.types import LaurelError, Problem, Prompt

SAMPLE = 64
"""Rows of each split that are rendered and looked at."""


@dataclass
class Tried:
    """``facts`` are lines worth reading when all is well."""

    findings: list[Finding] = field(default_factory=list)
    facts: list[str] = field(default_factory=list)


def of_problems(problems: Sequence[Problem]) -> list[Finding]:
    """Problems that the rooms' checks found in the settings."""
    return [
        Finding("settings", "error", "", f"{problem.field}={problem.value!r}", problem.cure) for problem in problems
    ]


def try_all(config: Config, wrong: Collection[str] = ()) -> Tried:
    """Reads the first rows alone, writes nothing. Runs the user's reward function, if one is set.

    ``wrong`` are settings that a check found fault with: what needs them is not tried, so that nothing is said twice.
    """
    tried = Tried()
    if any(field.startswith("actor_rollout_ref.model.") for field in wrong):
        return tried
    try:
        tokenizer = load_tokenizer(config.actor_rollout_ref.model)
    except LaurelError as error:
        tried.findings.append(of_error("tokenizer", "", error))
        return tried
    prompts = _data(config, tokenizer, tried, wrong)
    kwargs = config.data.apply_chat_template_kwargs
    tried.findings += template.examine(tokenizer, config.actor_rollout_ref.model, prompts, kwargs)
    if any(field.startswith(("reward.", "data.reward_fn_key")) for field in wrong):
        return tried
    try:
        function = load_reward_fn(config)
    except RewardError as error:
        tried.findings.append(of_error("reward", "", error))
    else:
        tried.findings += reward.examine(reward.sampled(prompts), function, custom=reward.custom_name(config))
    return tried


def _data(config: Config, tokenizer: Any, tried: Tried, wrong: Collection[str]) -> list[Prompt]:
    data, kwargs, found = config.data, config.data.apply_chat_template_kwargs, []
    splits = (("train", data.train_files, data.train_max_samples), ("val", data.val_files, data.val_max_samples))
    with tempfile.TemporaryDirectory() as nowhere:  # tokens of a few rows are not worth keeping
        for split, files, limit in splits:
            if not files or f"data.{split}_files" in wrong or (split == "train" and config.trainer.val_only):
                continue
            try:
                rows = [count_rows(file) for file in files]
                table = load_prompts(
                    files,
                    data.model_copy(update={"cache_dir": nowhere}),
                    lambda messages: render_prompt(tokenizer, messages, **kwargs),
                    cache_key=tokenizer_key(tokenizer, **kwargs),
                    limit=SAMPLE if limit < 0 else min(SAMPLE, limit),
                    say=lambda line: None,
                )
            except DataError as error:
                tried.findings.append(of_error("data", "", error))
                continue
            used = sum(rows) if limit < 0 else min(limit, sum(rows))
            longest = max(len(prompt.input_ids) for prompt in table)
            tried.facts.append(
                f"data.{split}_files: {' + '.join(map(str, rows))} rows, {used} used; of the first {len(table)} the "
                f"longest prompt has {longest} of data.max_prompt_length={data.max_prompt_length} tokens"
            )
            found += list(table)
            tried.findings += _dropped(split, table.dropped, len(table))
    return found


def _dropped(split: str, dropped: int, kept: int) -> list[Finding]:
    if dropped <= kept:
        return []
    what = f"data.{split}_files: {dropped} of the first {dropped + kept} prompts are over-long and left out"
    return [Finding("data", "warning", "", what, "raise data.max_prompt_length")]


def paths_of(config: Config) -> list[Named]:
    """Everything that a run reads by path."""
    actor, critic = config.actor_rollout_ref.model, config.critic.model
    named = [
        Named("model", "actor_rollout_ref.model.path", actor.path, True) if actor.path else None,
        Named("tokenizer", "actor_rollout_ref.model.tokenizer_path", actor.tokenizer_path, True)
        if actor.tokenizer_path
        else None,
        Named("model", "critic.model.path", critic.path, True)
        if config.critic.enable and critic.path and critic.path != actor.path
        else None,
        *(Named("data", "data.train_files", file, False) for file in config.data.train_files),
        *(Named("data", "data.val_files", file, False) for file in config.data.val_files),
    ]
    return [one for one in named if one is not None]


def parameters_of(config: Config) -> list[int]:
    """Parameters of the models that are trained, as far as they are known here: the actor's first."""
    models = [config.actor_rollout_ref.model, *([config.critic.model] if config.critic.enable else [])]
    counts = []
    for model in models:
        try:
            published = published_config(model)
            counts += [] if published is None else [Shape.of({**published, **model.override_config}).parameters]
        except (OSError, ValueError, KeyError):  # of a kind whose size is not known
            continue
    return counts
