"""What a run must remember to go on as if it had not been interrupted."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from laurel.types import LaurelError

STATE = "run_state.json"


@dataclass
class RunState:
    """The whole state outside the models. Random numbers need none: each is a hash of (seed, step, prompt, sample).

    ``step`` counts training steps begun, ``consumed`` the prompts drawn, ``policy_version`` the published weights.
    """

    step: int = 0
    consumed: int = 0
    policy_version: int = 0
    kl_coef: float = 0.0

    def next_version(self) -> int:
        self.policy_version += 1
        return self.policy_version

    def save(self, folder: Path) -> None:
        (folder / STATE).write_text(json.dumps(asdict(self), indent=1))

    def restore(self, folder: Path) -> None:
        """Take over what ``save`` wrote."""
        stored = json.loads((folder / STATE).read_text())
        unknown = sorted(stored.keys() - asdict(self).keys())
        if unknown:
            raise LaurelError(f"{folder / STATE} has unknown fields {unknown}; it was written by a newer Laurel")
        for name, value in stored.items():
            setattr(self, name, value)
