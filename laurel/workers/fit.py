"""What ranks are told of the memory that was planned for them, beside the settings."""

from __future__ import annotations

from dataclasses import dataclass

from laurel.config.tree import Config


@dataclass(frozen=True)
class Fit:
    """``config`` has no nulls left that depend on memory. ``sequences``: the most that an engine is asked for at once;
    None is its part of a training batch. ``keep_logits``: tokens of a micro-batch whose logits the actor holds.
    ``predicted``: bytes that tensors take on a GPU at the fullest moment; None where that is not known."""

    config: Config
    sequences: int | None = None
    keep_logits: int = 0
    predicted: float | None = None
