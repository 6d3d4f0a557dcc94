import pytest

from laurel.learner.dist import ONE_RANK, Meeting, join
from laurel.types import LaurelError


def test_one_rank_needs_no_meeting():
    ranks = join(rank=0, world=1, meeting=None, device="cpu")
    assert (ranks.rank, ranks.world, ranks.first) == (0, 1, True)
    assert ranks.sum({"b": 2, "a": 1.5}) == {"a": 1.5, "b": 2.0}
    assert ranks.max(3.0) == 3.0
    ranks.barrier()
    assert ranks == ONE_RANK


def test_the_system_chooses_the_port():
    first, second = Meeting("127.0.0.1", 2), Meeting("127.0.0.1", 2)
    ports = [int(meeting.address.removeprefix("127.0.0.1:")) for meeting in (first, second)]
    assert 0 not in ports
    assert ports[0] != ports[1]


def test_a_rank_that_nobody_meets_says_where_it_waited():
    meeting = Meeting("127.0.0.1", 2, 1.0)
    with pytest.raises(LaurelError, match=rf"rank 0 of 2 did not meet the others at {meeting.address} within 1 s"):
        join(rank=0, world=2, meeting=meeting, device="cpu", timeout_s=1.0)
    with pytest.raises(ValueError, match="rank 1 of 2 needs a meeting"):
        join(rank=1, world=2, meeting=None, device="cpu")
