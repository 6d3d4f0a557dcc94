"""Watches how far the policy that samples is from the one that learns; warns, and ends the run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from laurel.algos.correction import DIFF
from laurel.config.correction import RolloutCorrection
from laurel.trainer.roles import Metrics
from laurel.types import LaurelError

KEY = "algorithm.rollout_correction"


@dataclass
class Gauge:
    """``warn`` and ``stop`` are limits of the mean |rollout - old log-probability| of a step; None is no limit."""

    warn: float | None
    stop: float | None
    say: Callable[[str], None]
    warned: bool = False

    def watch(self, step: int, metrics: Metrics) -> None:
        """Warn once each time the limit is passed anew. Raises LaurelError above ``stop``. A step whose engine reported
        no log-probabilities is passed over."""
        if DIFF not in metrics:
            return
        found = metrics[DIFF]
        apart = f"step {step}: the engine's log-probabilities are {found:.3g} from the learner's ({DIFF})"
        # Not (found <= limit), so that NaN counts as too far
        if self.stop is not None and not found <= self.stop:
            raise LaurelError(
                f"{apart}, above {KEY}.log_prob_diff_stop={self.stop}: both do not compute the same policy. Find out "
                "why, or raise that limit or leave it out; the last checkpoint is from before this step"
            )
        above = self.warn is not None and not found <= self.warn
        if above and not self.warned:
            self.say(
                f"WARNING: {apart}, above {KEY}.log_prob_diff_warn={self.warn}; {KEY}.rollout_is=token weighs the "
                f"losses by it, and {KEY}.log_prob_diff_stop ends a run above a limit"
            )
        self.warned = above


def build_gauge(settings: RolloutCorrection, say: Callable[[str], None]) -> Gauge:
    return Gauge(settings.log_prob_diff_warn, settings.log_prob_diff_stop, say)
