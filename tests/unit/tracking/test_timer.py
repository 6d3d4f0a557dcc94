from __future__ import annotations

import pytest

from laurel.tracking.timer import Timer


def test_phases_add_up_and_are_taken_once() -> None:
    ticks = iter([0.0, 1.0, 10.0, 12.5, 20.0, 20.5])
    timer = Timer(clock=lambda: next(ticks))
    with timer("gen"):
        pass
    with timer("ref"):
        pass
    with timer("gen"):
        pass
    assert timer.take() == {"timing_s/gen": 1.5, "timing_s/ref": 2.5}
    assert timer.take() == {}


def test_a_phase_that_raises_is_timed() -> None:
    ticks = iter([0.0, 4.0])
    timer = Timer(clock=lambda: next(ticks))
    with pytest.raises(KeyError), timer("ref"):
        raise KeyError
    assert timer.take() == {"timing_s/ref": 4.0}
