import math

import pytest

from laurel.config.correction import RolloutCorrection
from laurel.trainer.gauge import Gauge, build_gauge
from laurel.types import LaurelError

NAME = "rollout/log_prob_diff/mean"


def said_by(gauge_of, *values: float) -> list[str]:
    said: list[str] = []
    gauge = gauge_of(said.append)
    for step, value in enumerate(values, 1):
        gauge.watch(step, {NAME: value})
    return said


def test_a_warning_names_step_number_and_keys_and_comes_once_for_each_passing():
    first, second = said_by(lambda say: Gauge(0.05, None, say), 0.05, 0.0612, 0.07, 0.05, 0.2)
    assert first == (
        "WARNING: step 2: the engine's log-probabilities are 0.0612 from the learner's (rollout/log_prob_diff/mean), "
        "above algorithm.rollout_correction.log_prob_diff_warn=0.05; algorithm.rollout_correction.rollout_is=token "
        "weighs the losses by it, and algorithm.rollout_correction.log_prob_diff_stop ends a run above a limit"
    )
    assert second.startswith("WARNING: step 5: ")


def test_above_the_other_limit_the_run_ends():
    gauge = Gauge(None, 0.5, print)
    gauge.watch(1, {NAME: 0.5})
    with pytest.raises(LaurelError, match=r"step 2: .* 0\.7 .*log_prob_diff_stop=0\.5: both do not compute the same"):
        gauge.watch(2, {NAME: 0.7})


@pytest.mark.parametrize("broken", [math.nan, math.inf])
def test_a_number_that_is_none_is_too_far(broken: float):
    assert len(said_by(lambda say: Gauge(0.05, None, say), broken)) == 1
    with pytest.raises(LaurelError):
        said_by(lambda say: Gauge(None, 0.5, say), broken)


def test_without_limits_or_measurement_nothing_is_said():
    assert said_by(lambda say: Gauge(None, None, say), 9.0) == []
    gauge = Gauge(0.05, 0.5, said_by)
    gauge.watch(1, {"actor/lr": 1.0})


def test_limits_are_those_of_the_settings():
    built = build_gauge(RolloutCorrection(log_prob_diff_warn=0.2, log_prob_diff_stop=0.3), print)
    assert (built.warn, built.stop, built.say) == (0.2, 0.3, print)
    assert build_gauge(RolloutCorrection(), print) == Gauge(0.05, None, print)
