"""Which sampled groups a step learns from: every one, or only those whose members differ (dynamic sampling, DAPO).

Samples of one prompt that all score the same have no advantage over each other: such a group costs time and teaches
nothing (DAPO, arXiv:2503.14476, section 3.2 and the constraint of equation 11).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from laurel.config.tree import FilterMetric
from laurel.types import Group, LaurelError, Prompt, Trajectory

KEY = "algorithm.filter_groups"
Draw = Callable[[], Sequence[Prompt]]
Sample = Callable[[Sequence[Prompt]], list[Group]]


class NothingToLearn(LaurelError):
    """A step did not find enough informative groups. Nothing of the step was learned; what was before it is whole."""


@dataclass(frozen=True)
class Gathered:
    """The groups that a step learns from, and metrics of how they were found."""

    groups: list[Group]
    metrics: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class EveryGroup:
    """The groups of one generation batch, as they are."""

    def gather(self, draw: Draw, sample: Sample, *, step: int) -> Gathered:
        return Gathered(sample(draw()))


@dataclass(frozen=True)
class InformativeGroups:
    """Generation batches until ``want`` groups are informative; the first ``want`` in the order of drawing count.

    ``most`` is the largest number of generation batches of a step; 0 is no limit, and then only a whole pass over the
    ``rows`` training prompts without one informative group ends it. ``say`` takes a line after every batch that was
    not enough.
    """

    want: int
    metric: FilterMetric
    most: int
    rows: int
    say: Callable[[str], None]

    def gather(self, draw: Draw, sample: Sample, *, step: int) -> Gathered:
        """Raises NothingToLearn when no further batch may be drawn."""
        kept: list[Group] = []
        dropped: list[Group] = []
        batches, barren = 0, 0
        while len(kept) < self.want:
            if batches:
                self._require_hope(kept, dropped, batches, barren, step)
            groups = sample(draw())
            batches += 1
            informative = [differs(group, self.metric) for group in groups]
            barren = 0 if any(informative) else barren + len(groups)
            kept += [group for group, keep in zip(groups, informative, strict=True) if keep]
            dropped += [group for group, keep in zip(groups, informative, strict=True) if not keep]
        return Gathered(kept[: self.want], self._metrics(kept, dropped, batches))

    def _require_hope(
        self, kept: Sequence[Group], dropped: Sequence[Group], batches: int, barren: int, step: int
    ) -> None:
        """Say that another batch is drawn, or raise if there may be none."""
        count = f"{batches} generation batch{'es' * (batches > 1)}"
        found = f"{len(kept)} of {self.want} groups are informative after {count} ({len(kept) + len(dropped)} prompts)"
        capped = self.most > 0 and batches >= self.most
        if not capped and (self.most > 0 or barren < self.rows):
            self.say(f"step {step}: {found}; drawing further prompts")
            return
        why = f"{KEY}.max_num_gen_batches={self.most}"
        if not capped:
            why = f"{KEY}: the last {barren} prompts, a whole pass over the training data, gave no informative group"
        mean = fmean(_values_of(dropped, self.metric) or [float("nan")])
        raise NothingToLearn(
            f"{why}: at step {step} only {found}. In each of the others all samples have the same {self.metric}, "
            f"{mean:.3g} on average. Give prompts that the model answers rightly now and then, or sample more of each "
            f"(actor_rollout_ref.rollout.n)"
            + (", or allow more (max_num_gen_batches, data.gen_batch_size)" if capped else "")
            + (". Nothing learned before this step is lost: a checkpoint holds it" if step > 1 else "")
        )

    def _metrics(self, kept: Sequence[Group], dropped: Sequence[Group], batches: int) -> dict[str, float]:
        scores = [t.score.value for group in (*kept, *dropped) for t in group.trajectories if t.score is not None]
        metrics = {
            "train/num_gen_batches": float(batches),
            "filter_groups/informative": float(len(kept)),
            "filter_groups/dropped": float(len(dropped)),
            "filter_groups/surplus": float(len(kept) - self.want),
            "filter_groups/score/mean": fmean(scores),
        }
        if values := _values_of(dropped, self.metric):
            metrics["filter_groups/dropped_metric/mean"] = fmean(values)
        return metrics


def differs(group: Group, metric: FilterMetric) -> bool:
    """Whether the members of ``group`` do not all have the same value of ``metric``.

    Example: acc of 0, 1, 0 differ; 1, 1, 1 do not. Values are compared as they are: a standard deviation, which verl
    takes, of three times 0.1 is not exactly 0. Members that could not be scored do not count.
    """
    return len({value_of(trajectory, group.prompt, metric) for trajectory in _scored(group)}) > 1


def _scored(group: Group) -> list[Trajectory]:
    return [trajectory for trajectory in group.trajectories if trajectory.unscored is None]


def _values_of(groups: Sequence[Group], metric: FilterMetric) -> list[float]:
    """The one value that the scored members of each group have; groups without any are left out."""
    return [value_of(scored[0], group.prompt, metric) for group in groups if (scored := _scored(group))]


def value_of(trajectory: Trajectory, prompt: Prompt, metric: FilterMetric) -> float:
    """One trajectory's value of ``metric``.

    ``acc``: what the reward function reports under that name. ``score``: what it returned. ``seq_reward``: the same
    after the reward manager (with the over-long penalty). ``seq_final_reward``: also after KL in the reward, which is
    refused at load together with this metric, so both are the same here.
    """
    if trajectory.score is None:
        raise ValueError(f"trajectory {prompt.index}/{trajectory.sample} (prompt/sample) has no score")
    value, extras = trajectory.score.value, trajectory.score.extras
    if metric == "acc":
        if "acc" not in extras:
            raise LaurelError(
                f"{KEY}.metric=acc: the reward function reports no acc for row {prompt.index} (data_source "
                f"{prompt.data_source!r}); let it return {{'score': ..., 'acc': ...}}, or set {KEY}.metric=score"
            )
        return extras["acc"]
    if metric == "score":
        return extras.get("score", value)
    return value
