import os
import signal

import pytest

from laurel.trainer.stop import Interrupted, Stop, build_stop


def test_a_request_waits_for_the_next_check_where_work_must_be_finished():
    with Stop() as stop:
        with stop.at_checks():
            os.kill(os.getpid(), signal.SIGUSR1)
            done = "the block goes on"
            with pytest.raises(Interrupted, match="SIGUSR1"):
                stop.check()
        assert (done, stop.requested, stop.saves) == ("the block goes on", "SIGUSR1", True)


def test_a_request_ends_at_once_what_need_not_be_finished():
    with Stop() as stop, stop.at_checks():
        with pytest.raises(Interrupted), stop.at_once():
            os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)  # schedulers repeat themselves while a run saves
        assert stop.saves


def test_code_that_swallows_the_interruption_does_not_stop_the_stop():
    swallowed = []

    def careless() -> None:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        except BaseException as error:
            swallowed.append(error)

    with Stop() as stop, stop.at_checks():
        with pytest.raises(Interrupted), stop.at_once():
            careless()
        assert len(swallowed) == 1


def test_a_second_ctrl_c_does_not_wait():
    with Stop() as stop, stop.at_checks():
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
        assert not stop.saves


@pytest.mark.parametrize(("left", "limit"), [(3600, 3480.0), (100, 50.0)])
def test_slurms_own_limit_leaves_time_to_save(left, limit):
    stop = build_stop(None, {"SLURM_JOB_END_TIME": str(1000 + left)}, clock=lambda: 1000.0)
    assert (stop._limit_s, stop._reason) == (limit, "Slurm's time limit")
    assert build_stop(7, {"SLURM_JOB_END_TIME": "9000"}, clock=lambda: 1000.0)._limit_s == 7
    for environ in ({}, {"SLURM_JOB_END_TIME": "0"}, {"SLURM_JOB_END_TIME": "Unknown"}):
        assert build_stop(None, environ)._limit_s is None
