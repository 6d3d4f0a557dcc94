"""Settings of the correction for the difference between the policy that sampled and the policy that learns."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from laurel.config.section import NonNegative, Section


class RolloutCorrection(Section):
    bypass_mode: bool = False
    """Take the engine's log-probabilities as the old ones, so that no pass computes them and no weights are needed."""
    rollout_is: Literal["token", "sequence"] | None = None
    """Weigh token losses by the ratio of the old policy to the engine's, of each token or each whole trajectory."""
    rollout_is_threshold: Annotated[float, Field(gt=0)] = 2.0
    """Largest weight; larger ratios are cut to it."""
    rollout_is_batch_normalize: bool = False
    """Divide the weights by their mean over the batch."""
    rollout_rs: Literal["token", "sequence", "geometric"] | None = None
    """Leave out tokens, or trajectories by their ratio (sequence) or its geometric mean over tokens (geometric)."""
    rollout_rs_threshold: Annotated[float, Field(gt=0)] | None = None
    """Largest ratio that rollout_rs keeps; it must be given."""
    rollout_rs_threshold_lower: NonNegative | None = None
    """Smallest ratio that rollout_rs keeps; null is 1 / rollout_rs_threshold."""
    rollout_token_veto_threshold: NonNegative | None = None
    """Leave out every trajectory with a token whose ratio is below this; null keeps them."""
    log_prob_diff_warn: Annotated[float, Field(gt=0)] | None = 0.05
    """Warn when engine and learner differ by more than this in log-probability, a step's mean; null never."""
    log_prob_diff_stop: Annotated[float, Field(gt=0)] | None = None
    """End the run when they differ by more than this; null never."""

    @property
    def corrects(self) -> bool:
        """Whether losses are weighted or tokens left out, which needs the learner's log-probabilities."""
        asked = self.rollout_is or self.rollout_rs or self.rollout_token_veto_threshold is not None
        return bool(asked) and not self.bypass_mode
