"""Clocks of the nodes against this machine's, as far as the time of one call allows to tell."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from laurel.preflight.doctor.finding import Finding

TOLERATED_S = 1.0


@dataclass(frozen=True)
class Offset:
    """A clock is ``ahead`` of this machine's by so many seconds (behind, if negative), give or take ``unsure``."""

    ahead: float
    unsure: float


def compare(ask: Callable[[], float], clock: Callable[[], float] = time.time) -> Offset:
    """``ask`` reads the other clock. It was read between question and answer, most likely in the middle."""
    before = clock()
    theirs = ask()
    after = clock()
    return Offset(theirs - (before + after) / 2, (after - before) / 2)


def judge(offsets: Mapping[str, Offset]) -> list[Finding]:
    """Nodes whose clock is surely off."""
    found = []
    for name, offset in offsets.items():
        if abs(offset.ahead) - offset.unsure > TOLERATED_S:
            which = "ahead of" if offset.ahead > 0 else "behind"
            what = f"its clock is {abs(offset.ahead):.1f} s {which} this machine's"
            cure = (
                "start its time service (chronyd or systemd-timesyncd; `timedatectl` shows its state): logs cannot be "
                "compared, and beyond minutes credentials and TLS certificates are refused"
            )
            found.append(Finding("clock", "warning", name, what, cure))
    return found
