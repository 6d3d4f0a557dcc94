"""One run: everything that the loop works with, decided when it was built."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from laurel.algos.table import Algorithm
from laurel.config.tree import Config
from laurel.data.sampler import PromptOrder
from laurel.rewards.pool import Scorer
from laurel.tracking.timer import Timer
from laurel.trainer.cadence import Cadence, ValidationCadence
from laurel.trainer.gauge import Gauge
from laurel.trainer.report import Report
from laurel.trainer.roles import Roles
from laurel.trainer.run_state import RunState
from laurel.trainer.saver import Saver
from laurel.trainer.stop import Stop
from laurel.types import Prompt


@dataclass(frozen=True)
class Run:
    """``checkpoint_dir`` is absolute. ``draw_size`` counts the prompts of one draw: a step makes one, or more where it
    samples until enough groups are informative."""

    config: Config
    roles: Roles
    algo: Algorithm
    state: RunState
    timer: Timer
    report: Report
    scorer: Scorer
    gauge: Gauge
    train_prompts: Sequence[Prompt]
    val_prompts: Sequence[Prompt]
    order: PromptOrder
    draw_size: int
    total_steps: int
    saving: Cadence
    validation: ValidationCadence
    checkpoint_dir: Path
    saver: Saver
    validated_before: bool
    """Whether the checkpoint that this run goes on from was validated."""
    stop: Stop = field(default_factory=Stop)

    def next_prompts(self) -> list[Prompt]:
        """The next prompts, in an order that depends on (data.seed, number consumed) alone."""
        chosen = self.order.take(self.state.consumed, self.draw_size)
        self.state.consumed += self.draw_size
        return [self.train_prompts[row] for row in chosen]

    def close(self) -> None:
        try:
            self.saver.close()
        finally:
            self.scorer.close()
            self.report.close()
