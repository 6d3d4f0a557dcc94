"""Validation: every row of the validation files answered once (times val_kwargs.n), counted and scored."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from laurel.tracking.samples import Sample, samples_of
from laurel.trainer.roles import Metrics
from laurel.trainer.run import Run
from laurel.types import Group, LaurelError, Prompt

# The measure of a data source to watch: the first of these that its reward function reports.
CORE_MEASURES = ("acc", "strict")


def validate(run: Run) -> tuple[list[Sample], Metrics]:
    """Answers of the current policy to all validation prompts, and their measures."""
    with run.timer("testing"), run.stop.at_once(), run.roles.rollouts.awake():
        groups = run.roles.rollouts.answer(run.val_prompts)
    samples_per_prompt = run.config.actor_rollout_ref.rollout.val_kwargs.n
    require_every_row(run.val_prompts, groups, samples_per_prompt)
    samples = samples_of(groups)
    return samples, validation_metrics(samples, samples_per_prompt)


def require_every_row(prompts: Sequence[Prompt], groups: Sequence[Group], samples_per_prompt: int) -> None:
    """A validation that lost rows would report a wrong number: an error instead."""
    answered = {group.prompt.index: len(group.trajectories) for group in groups}
    short = [prompt.index for prompt in prompts if answered.get(prompt.index) != samples_per_prompt]
    if short or len(groups) != len(prompts):
        raise LaurelError(
            f"validation answered {len(groups)} of {len(prompts)} rows with {samples_per_prompt} samples each; "
            f"incomplete rows: {short[:8]}"
        )


def validation_metrics(samples: Sequence[Sample], n: int) -> Metrics:
    """Means over all samples of each data source.

    ``val-core/<source>/reward/mean@n`` and, if the reward function reports one, its accuracy; every other number it
    reports, the truncation rate and the number of rows under ``val-aux``. Where ``format`` is reported too, also the
    accuracy among well-formed answers (``acc_given_format``), so that learning the format cannot pass for learning.
    Samples that could not be scored are in no mean; their number is ``val-aux/<source>/unscored``, where there are any.
    """
    metrics: Metrics = {}
    for source in dict.fromkeys(sample.data_source for sample in samples):
        every = [sample for sample in samples if sample.data_source == source]
        own = [sample for sample in every if not sample.unscored]
        if len(own) < len(every):
            metrics[f"val-aux/{source}/unscored"] = len(every) - len(own)
        if not own:
            continue
        names = list(dict.fromkeys(name for sample in own for name in sample.extras))
        core = next((name for name in CORE_MEASURES if name in names), None)
        metrics[f"val-core/{source}/reward/mean@{n}"] = fmean(sample.score for sample in own)
        for name in names:
            kind = "val-core" if name == core else "val-aux"
            values = [sample.extras[name] for sample in own if name in sample.extras]
            metrics[f"{kind}/{source}/{name}/mean@{n}"] = fmean(values)
        formed = [sample.extras for sample in own if sample.extras.get("format", 0.0) > 0]
        if formed and "acc" in names:
            metrics[f"val-aux/{source}/acc_given_format/mean@{n}"] = fmean(extras["acc"] for extras in formed)
        metrics[f"val-aux/{source}/truncated/mean@{n}"] = fmean(s.finish_reason == "length" for s in every)
        metrics[f"val-aux/{source}/rows"] = len({sample.index for sample in every})
    return metrics
