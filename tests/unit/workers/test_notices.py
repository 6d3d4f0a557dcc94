"""Warnings of ranks reach the driver once, with who said them."""

from __future__ import annotations

import logging
from dataclasses import replace

from laurel.workers.notices import Notices, told
from laurel.workers.waiting import Member

_MEMBER = Member(0, "10.0.0.1", "n", "h", 7, "cuda", 4)


def test_warnings_are_kept_until_they_are_taken() -> None:
    notices = Notices.listen()
    logger = logging.getLogger("laurel")
    try:
        logger.info("nothing to say")
        logger.warning("the %s trains slower", "actor")
        logging.getLogger("laurel.somewhere").error("broken")
        logging.getLogger("other").warning("not ours")
        assert notices.take() == ["the actor trains slower", "broken"]
        assert notices.take() == []
    finally:
        logger.removeHandler(notices)


def test_what_several_said_is_one_line() -> None:
    members = [replace(_MEMBER, rank=rank) for rank in range(3)]
    assert told(members, [["slow", "slow"], [], ["slow", "memory ran out"]]) == [
        "ranks 0, 2: slow",
        "rank 2: memory ran out",
    ]
