"""What ranks have to say: warnings of a rank stay in the log of its process, so the driver fetches and prints them."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from laurel.workers.waiting import Member


class Notices(logging.Handler):
    """Keeps the warnings that Laurel's own code logs in this process until they are fetched."""

    def __init__(self) -> None:
        super().__init__(level=logging.WARNING)
        self._lines: list[str] = []

    @classmethod
    def listen(cls) -> Notices:
        """Hear what is logged as ``laurel`` from now on."""
        notices = cls()
        logging.getLogger("laurel").addHandler(notices)
        return notices

    def emit(self, record: logging.LogRecord) -> None:
        self._lines.append(record.getMessage())

    def take(self) -> list[str]:
        """The lines since the last time."""
        lines, self._lines = self._lines, []
        return lines


def told(members: Sequence[Member], lines: Sequence[Sequence[str]]) -> list[str]:
    """One line for each thing that was said, with who said it.

    Example: ranks 0 and 1 of 2 both said "slow": ``["ranks 0, 1: slow"]``.
    """
    said: dict[str, list[int]] = {}
    for member, own in zip(members, lines, strict=True):
        for line in dict.fromkeys(own):
            said.setdefault(line, []).append(member.rank)
    return [
        f"rank{'s' * (len(ranks) > 1)} {', '.join(str(rank) for rank in ranks)}: {line}" for line, ranks in said.items()
    ]
