"""When something is due."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Cadence:
    """Every ``every`` steps, and always at the last one; ``every <= 0`` leaves only the last."""

    every: int
    last: int

    def due(self, step: int) -> bool:
        return step == self.last or (self.every > 0 and step % self.every == 0)


@dataclass(frozen=True)
class ValidationCadence(Cadence):
    """As Cadence, also before the first step if ``before_train``; never without validation data."""

    before_train: bool
    has_data: bool

    def at_start(self, step: int, *, done: bool) -> bool:
        """Before the first step; or after a resume if the validation of that step is not ``done``, since a run may end
        between its checkpoint and the validation that was due."""
        if step == 0:
            return self.has_data and self.before_train
        return self.due(step) and not done

    def due(self, step: int) -> bool:
        return self.has_data and super().due(step)


def total_steps(rows: int, batch_size: int, epochs: int, limit: int | None) -> int:
    """Training steps: as many whole batches as ``epochs`` passes over ``rows`` prompts give, or ``limit`` if given.

    A batch may span the edge of two epochs, so no row is dropped before the very end.
    Example: 10 rows, batches of 4, 2 epochs: 5 steps.
    """
    return max(1, rows * epochs // batch_size) if limit is None else limit
