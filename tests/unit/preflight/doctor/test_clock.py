import itertools

from laurel.preflight.doctor.clock import Offset, compare, judge


def test_the_other_clock_was_read_in_the_middle_of_the_call():
    own = itertools.chain([100.0, 100.5])
    assert compare(lambda: 103.0, lambda: next(own)) == Offset(2.75, 0.25)


def test_only_what_is_surely_off_is_told():
    offsets = {
        "fine": Offset(0.9, 0.0),
        "slow call": Offset(2.0, 1.5),
        "ahead": Offset(2.5, 0.1),
        "behind": Offset(-70, 0.1),
    }
    found = judge(offsets)
    assert [(one.topic, one.severity, one.where) for one in found] == [
        ("clock", "warning", "ahead"),
        ("clock", "warning", "behind"),
    ]
    assert [one.what for one in found] == [
        "its clock is 2.5 s ahead of this machine's",
        "its clock is 70.0 s behind this machine's",
    ]
    assert "timedatectl" in found[0].cure
