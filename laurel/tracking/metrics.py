"""Every metric, declared once: name, unit, how several values of one step combine, and what it honestly is.

The names are those of users' dashboards. A name that is not declared here is an error, so a dashboard never shows a
number that nobody defined.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from statistics import fmean
from typing import Literal

from laurel.types import LaurelError

Reducer = Literal["mean", "max", "min", "sum", "last"]

_REDUCE: dict[Reducer, Callable[[Sequence[float]], float]] = {
    "mean": fmean,
    "max": max,
    "min": min,
    "sum": sum,
    "last": lambda values: values[-1],
}


@dataclass(frozen=True)
class Metric:
    """``name`` may hold ``{placeholders}``, which stand for any text: ``val-core/{source}/{measure}``."""

    name: str
    unit: str
    reducer: Reducer
    definition: str


class UndeclaredMetric(LaurelError):
    """A metric that metrics.py does not declare."""


def _spread(stem: str, unit: str, what: str) -> list[Metric]:
    """``stem``/mean, /max and /min of one quantity."""
    words: list[tuple[Reducer, str]] = [("mean", "Mean"), ("max", "Largest"), ("min", "Smallest")]
    return [Metric(f"{stem}/{reducer}", unit, reducer, f"{word} {what}.") for reducer, word in words]


_TRAINING = [
    Metric("training/global_step", "steps", "last", "Training steps done, this one included."),
    Metric("training/epoch", "epochs", "last", "Passes over the training data, counted by the prompts drawn so far."),
    Metric("training/policy_version", "versions", "last", "Version of the weights that this step published."),
]

_TRAINING += [
    Metric("train/num_gen_batches", "batches", "last", "Generation batches until the step had its groups."),
    Metric("filter_groups/informative", "groups", "last", "Groups whose samples differ in the metric, surplus too."),
    Metric("filter_groups/dropped", "groups", "last", "Groups whose samples all have the same value of the metric."),
    Metric("filter_groups/surplus", "groups", "last", "Informative groups beyond data.train_batch_size, left out too."),
    Metric("filter_groups/dropped_metric/mean", "as the metric", "last", "Mean over dropped groups of that value."),
    Metric("filter_groups/score/mean", "score", "last", "Mean score over all trajectories sampled, also dropped ones."),
]

_ACTOR = [
    Metric("actor/pg_loss", "1", "mean", "Policy loss alone, by loss_agg_mode, mean over the step's updates."),
    Metric("actor/pg_clipfrac", "fraction", "mean", "Sampled tokens that the clip range, or a limit, cut off."),
    Metric("actor/pg_clipfrac_lower", "fraction", "mean", "Sampled tokens where the dual clip held."),
    Metric("actor/pg_covfrac", "fraction", "mean", "Sampled tokens that clip_cov or kl_cov singled out."),
    Metric("actor/ppo_kl", "nats/token", "mean", "Old minus current log-probability, mean over sampled tokens."),
    Metric("actor/entropy", "nats/token", "mean", "Entropy of the policy's next-token choice, over sampled tokens."),
    Metric("actor/kl_loss", "nats", "mean", "KL to the reference by kl_loss_type and loss_agg_mode, unweighted."),
    Metric("actor/grad_norm", "1", "mean", "Global gradient norm before clipping, mean over the step's updates."),
    Metric("actor/lr", "1", "last", "Learning rate of the step's last update."),
    Metric("actor/skipped_updates", "updates", "sum", "Updates left out because the gradient was not finite."),
]

_CRITIC = [
    *_spread("critic/score", "score", "raw score of the reward function over trajectories"),
    *_spread("critic/rewards", "score", "sum of a trajectory's token rewards, KL penalty included"),
    *_spread("critic/advantages", "1", "advantage over sampled tokens"),
    *_spread("critic/returns", "score", "return over sampled tokens"),
    *_spread("critic/values", "score", "predicted value over sampled tokens, before the update"),
    Metric("critic/vf_loss", "score^2", "mean", "Clipped value loss by critic.loss_agg_mode, mean over updates."),
    Metric("critic/vf_clipfrac", "fraction", "mean", "Sampled tokens whose value the clip range cut off."),
    Metric("critic/vpred_mean", "score", "mean", "Predicted value over sampled tokens, during the updates."),
    Metric("critic/vf_explained_var", "1", "mean", "1 - var(returns - values) / var(returns), before the update."),
    Metric("critic/grad_norm", "1", "mean", "Global gradient norm before clipping, mean over the step's updates."),
    Metric("critic/lr", "1", "last", "Learning rate of the step's last critic update."),
    Metric("critic/skipped_updates", "updates", "sum", "Updates left out because the gradient was not finite."),
    Metric("critic/kl", "nats/token", "mean", "KL to the reference by kl_penalty, mean over tokens, then over rows."),
    Metric("critic/kl_coeff", "1", "last", "Weight of the KL penalty in this step's rewards."),
]

_LENGTHS = [
    *_spread("response_length", "tokens", "number of tokens after the prompt, environment tokens included"),
    Metric("response_length/clip_ratio", "fraction", "mean", "Trajectories whose finish reason is the length limit."),
    *_spread("prompt_length", "tokens", "number of prompt tokens"),
]

_PHASES = {
    "gen": "sampling the responses, scoring that overlaps it included",
    "old_log_prob": "log-probabilities before the update",
    "logit_grads": "logit gradients before the update (optimal_token_baseline)",
    "ref": "log-probabilities of the reference",
    "values": "values before the update",
    "update_critic": "updating the critic",
    "update_actor": "updating the actor",
    "publish": "handing new weights to the engines",
    "testing": "validation",
    "save_checkpoint": "saving a checkpoint",
    "step": "the whole training step, validation and saving not included",
}
PER_TOKEN_PHASES = ("gen", "old_log_prob", "logit_grads", "ref", "values", "update_critic", "update_actor")

_TIME = [
    *[Metric(f"timing_s/{phase}", "s", "sum", f"Wall time of {what}.") for phase, what in _PHASES.items()],
    Metric("timing_per_token_ms/gen", "ms/token", "mean", "timing_s/gen per sampled token."),
    *[
        Metric(f"timing_per_token_ms/{phase}", "ms/token", "mean", f"timing_s/{phase} per token, prompts included.")
        for phase in PER_TOKEN_PHASES
        if phase != "gen"
    ],
]

_PERF = [
    Metric("perf/total_num_tokens", "tokens", "sum", "Prompt and response tokens of the step; padding is not counted."),
    Metric("perf/time_per_step", "s", "sum", "Wall time of the training step."),
    Metric("perf/throughput", "tokens/s/rank", "mean", "Tokens without padding / step time / learner ranks."),
    Metric("perf/mfu/actor", "fraction", "mean", "Actor update FLOPs (no embedding look-up) / time / ranks / peak."),
    Metric("perf/mfu/critic", "fraction", "mean", "Critic update FLOPs (no embedding look-up) / time / ranks / peak."),
    Metric("perf/max_memory_allocated_gb", "GiB", "max", "Most GPU memory that tensors took on any rank."),
    Metric("perf/predicted_memory_gb", "GiB", "max", "Most GPU memory that tensors were predicted to take on a rank."),
    Metric("perf/max_memory_reserved_gb", "GiB", "max", "Most GPU memory that the allocator held on any rank."),
    Metric("rollout/tokens_per_second", "tokens/s", "mean", "Sampled tokens of all engines / timing_s/gen."),
    Metric("rollout/discarded_tokens", "tokens", "sum", "Sampled for dropped groups and greedy baselines."),
]

_REWARD = [
    Metric("reward/unscored", "trajectories", "sum", "Trajectories whose score failed, of which nothing is learned."),
    Metric("reward/unscored/{kind}", "trajectories", "sum", "Those by kind: error, time, memory or crash."),
    Metric("timing_s/scoring/mean", "s", "mean", "Time that the score of a trajectory took, without waiting for it."),
    Metric("timing_s/scoring/max", "s", "max", "Longest time that the score of a trajectory took."),
]

_CORRECTION = [
    Metric("rollout/log_prob_diff/mean", "nats", "mean", "|rollout - old log-probability|, mean over sampled tokens."),
    Metric("rollout/log_prob_diff/max", "nats", "max", "|rollout - old log-probability|, largest over sampled tokens."),
    Metric("rollout_corr/k3_kl", "nats/token", "mean", "KL of the engine's policy from the learner's, estimator k3."),
    Metric("rollout_corr/ratio/mean", "1", "mean", "Old / rollout probability, mean over sampled tokens."),
    Metric("rollout_corr/chi2_token", "1", "mean", "Mean squared old / rollout probability, minus 1."),
    Metric("rollout_corr/eff_sample_size", "fraction", "mean", "mean(ratio)^2 / mean(ratio^2) of old / rollout."),
    Metric("rollout_corr/rollout_is_mean", "1", "mean", "Weight of the policy loss by rollout_is, mean over tokens."),
    Metric("rollout_corr/rollout_is_max", "1", "max", "Largest weight of the policy loss by rollout_is."),
    Metric("rollout_corr/rollout_rs_masked_fraction", "fraction", "mean", "Sampled tokens left out of the losses."),
    Metric("rollout_corr/rollout_rs_seq_masked_fraction", "fraction", "mean", "Trajectories with a token left out."),
]

_VALIDATION = [
    Metric("val-core/{source}/{measure}", "as the reward", "last", "The measure of a data source to watch, all rows."),
    Metric("val-aux/{source}/{measure}", "as the reward", "last", "A further measure of a data source, all rows."),
]

METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in [*_TRAINING, *_ACTOR, *_CRITIC, *_LENGTHS, *_TIME, *_PERF, *_REWARD, *_CORRECTION, *_VALIDATION]
}


@cache
def _patterns() -> tuple[tuple[re.Pattern[str], Metric], ...]:
    return tuple(
        (re.compile(re.sub(r"\\\{\w+\\\}", ".+", re.escape(metric.name))), metric)
        for metric in METRICS.values()
        if "{" in metric.name
    )


@lru_cache(maxsize=4096)
def declared(name: str) -> Metric:
    """The declaration of ``name``; raises UndeclaredMetric with the nearest name."""
    if name in METRICS and "{" not in name:
        return METRICS[name]
    for pattern, metric in _patterns():
        if pattern.fullmatch(name):
            return metric
    near = difflib.get_close_matches(name, METRICS, n=1)
    hint = f"did you mean {near[0]!r}? Otherwise " if near else ""
    raise UndeclaredMetric(f"metric {name!r} is not declared: {hint}add it to laurel/tracking/metrics.py")


def combine(parts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Several values of each metric within one step (updates, ranks) to one, by its reducer.

    Example: ``combine([{"actor/pg_loss": 1.0, "actor/lr": 1e-6}, {"actor/pg_loss": 3.0, "actor/lr": 2e-6}])`` is
    ``{"actor/pg_loss": 2.0, "actor/lr": 2e-6}``.
    """
    values: dict[str, list[float]] = {}
    for part in parts:
        for name, value in part.items():
            values.setdefault(name, []).append(float(value))
    return {name: float(_REDUCE[declared(name).reducer](found)) for name, found in values.items()}
