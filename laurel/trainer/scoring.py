"""What scoring the trajectories of a step was like: how many failed, how long it took, and lines about both."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from statistics import fmean

from laurel.rewards.pool import Scored
from laurel.rewards.reward_fn import RewardError
from laurel.trainer.roles import Metrics
from laurel.types import Prompt, Unscored

SHOWN_REASONS = 3
SHOWN_SLOWEST = 10
SLOW_S = 10.0


@dataclass
class ScoringLog:
    """Of the trajectories that were sampled together, or of all of a step."""

    seconds: list[tuple[float, int, int]] = field(default_factory=list)
    failures: list[Unscored] = field(default_factory=list)

    def add(self, prompt: Prompt, sample: int, scored: Scored) -> None:
        self.seconds.append((scored.seconds, prompt.index, sample))
        if isinstance(scored.result, Unscored):
            self.failures.append(scored.result)

    def add_all(self, other: ScoringLog) -> None:
        self.seconds += other.seconds
        self.failures += other.failures

    def require_most(self) -> None:
        """Half of the scores missing is no accident of single samples: a RewardError that says why."""
        if self.failures and 2 * len(self.failures) >= len(self.seconds):
            raise RewardError(
                f"{len(self.failures)} of {len(self.seconds)} trajectories have no score; the first: "
                f"{self.failures[0].reason}"
            )

    def metrics(self) -> Metrics:
        metrics = {"reward/unscored": float(len(self.failures))}
        metrics |= {f"reward/unscored/{kind}": float(n) for kind, n in Counter(f.kind for f in self.failures).items()}
        if self.seconds:
            times = [seconds for seconds, _, _ in self.seconds]
            metrics |= {"timing_s/scoring/mean": fmean(times), "timing_s/scoring/max": max(times)}
        return metrics

    def lines(self) -> list[str]:
        """Why trajectories have no score, and the slowest if any was slow."""
        lines = [f"no score, left out: {failure.reason}" for failure in self.failures[:SHOWN_REASONS]]
        if (more := len(self.failures) - SHOWN_REASONS) > 0:
            lines.append(f"no score, left out: {more} more trajectories")
        slowest = sorted(self.seconds, reverse=True)[:SHOWN_SLOWEST]
        if slowest and slowest[0][0] >= SLOW_S:
            named = ", ".join(f"row {row} sample {sample} {seconds:.1f} s" for seconds, row, sample in slowest)
            lines.append(f"slowest of {len(self.seconds)} scores: {named}")
        return lines
