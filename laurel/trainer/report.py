"""What a run tells people and files: lines, metrics, samples, where things lie."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from laurel.batch.token_batch import TokenBatch
from laurel.tracking.batch_metrics import batch_metrics, speed_metrics
from laurel.tracking.console import stamped
from laurel.tracking.loggers import Loggers
from laurel.tracking.samples import (
    Sample,
    samples_of,
    validation_samples,
    write_rollout_samples,
    write_validation_samples,
)
from laurel.tracking.timer import Timer
from laurel.trainer.roles import Metrics
from laurel.trainer.run_state import STATE, RunState
from laurel.types import Group


def say(line: str) -> None:
    """One line to whoever watches: as it is on a terminal, with the time in a log."""
    print(line if sys.stdout.isatty() else stamped(line), flush=True)


@dataclass
class Report:
    """``ranks`` are learner ranks; ``rows_per_epoch`` is the number of training prompts; ``predicted_memory`` is in
    bytes, of a GPU at the fullest moment."""

    loggers: Loggers
    timer: Timer
    ranks: int
    rows_per_epoch: int
    validation_dir: Path
    rollout_dir: Path | None
    validations: list[tuple[int, Sequence[Sample], Metrics]] = field(default_factory=list)
    predicted_memory: float | None = None

    def begin(self, state: RunState, total_steps: int) -> None:
        if state.step >= total_steps:
            say(
                f"NOTHING LEFT TO DO: the checkpoint is at step {state.step} of {total_steps}. Raise "
                "trainer.total_epochs or trainer.total_training_steps to go on, or start anew with "
                "trainer.resume_mode=disable"
            )
        elif state.step:
            say(f"resumed at step {state.step} of {total_steps}")
        else:
            say(f"training: {total_steps} steps")

    def step(self, state: RunState, groups: Sequence[Group], batch: TokenBatch, metrics: Metrics) -> None:
        timing = self.timer.take()
        planned = {} if self.predicted_memory is None else {"perf/predicted_memory_gb": self.predicted_memory / 2**30}
        self.loggers.log(
            state.step,
            {
                "training/global_step": state.step,
                "training/epoch": state.consumed / self.rows_per_epoch,
                "training/policy_version": state.policy_version,
            }
            | metrics
            | batch_metrics(batch)
            | timing
            | planned
            | speed_metrics(batch, timing, ranks=self.ranks, discarded=metrics.get("rollout/discarded_tokens", 0)),
        )
        if self.rollout_dir is not None:
            write_rollout_samples(self.rollout_dir, state.step, samples_of(groups))

    def validation(self, step: int, samples: Sequence[Sample], metrics: Metrics) -> None:
        self.validations.append((step, samples, metrics))
        self.loggers.log(step, metrics | self.timer.take())
        self.loggers.log_samples(step, samples)
        write_validation_samples(self.validation_dir, step, samples)
        say(validation_line(step, samples, metrics))

    def validated(self, step: int, checkpoint: Path) -> bool:
        """Whether the run that wrote ``checkpoint`` at ``step`` also validated there.

        It saves first: samples older than the checkpoint are of another run in the same folder.
        """
        samples = validation_samples(self.validation_dir, step)
        # The run state is the first file of a save, written before training goes on
        return samples.exists() and samples.stat().st_mtime >= (checkpoint / STATE).stat().st_mtime

    def saving(self, step: int) -> None:
        """What a save took of the training's time."""
        self.loggers.log(step, self.timer.take())

    def close(self) -> None:
        self.loggers.close()


def validation_line(step: int, samples: Sequence[Sample], metrics: Metrics) -> str:
    """All measures of a validation together, with the number of rows that they are over.

    Example: ``validation at step 20: 200 rows | laurel/arithmetic: acc/mean@1 0.81, format/mean@1 0.99, ...``.
    """
    rows = len({sample.index for sample in samples})
    parts: dict[str, list[str]] = {}
    for name, value in metrics.items():
        _, _, rest = name.partition("/")
        source = next((s.data_source for s in samples if rest.startswith(s.data_source + "/")), "")
        parts.setdefault(source, []).append(f"{rest.removeprefix(source + '/')} {value:.4g}")
    shown = " | ".join(f"{source}: {', '.join(values)}" for source, values in parts.items())
    return f"validation at step {step}: {rows} rows | {shown}"
