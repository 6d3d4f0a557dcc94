"""What a rank writes of itself and of its failures, and what a debugger changes."""

import inspect
import os

import pytest

from laurel.workers import waiting
from laurel.workers.debugger import Paused, paused
from laurel.workers.environment import passed_environment
from laurel.workers.failures import FAILED, THIS_IS, introduce, writes_failures
from laurel.workers.host import COLLECTIVE_TIMEOUT_S, collective_timeout_s
from laurel.workers.waiting import Member, attach_to
from laurel.workers.worker import Rank


class Host:
    rank = 3


@writes_failures
class Actor:
    def __init__(self, broken=False):
        if broken:
            raise ValueError("no start")
        self.host = Host()

    def call(self, number: int) -> int:
        """Doubles."""
        return {1: 2}[number]

    def stream(self, numbers):
        for number in numbers:
            yield 1 / number


def test_a_failed_call_is_written_with_rank_call_and_traceback_and_raised_as_it_was(capsys):
    actor = Actor()
    assert actor.call(1) == 2
    with pytest.raises(KeyError, match="7"):
        actor.call(7)
    first, *lines = capsys.readouterr().err.splitlines()
    found = FAILED.match(first)
    assert (found["rank"], found["pid"], found["call"]) == ("3", str(os.getpid()), "call")
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[-2:] == ["KeyError: 7", ""]


def test_a_stream_stays_one_and_fails_where_it_fails(capsys):
    assert inspect.isgeneratorfunction(Actor.stream), "Ray streams what it sees to be a generator function"
    stream = Actor().stream([1, 0])
    assert next(stream) == 1.0
    assert capsys.readouterr().err == ""
    with pytest.raises(ZeroDivisionError):
        next(stream)
    assert FAILED.match(capsys.readouterr().err.splitlines()[0])["call"] == "stream"


def test_a_rank_that_fails_at_its_start_has_no_number_yet(capsys):
    with pytest.raises(ValueError, match="no start"):
        Actor(broken=True)
    found = FAILED.match(capsys.readouterr().err.splitlines()[0])
    assert (found["rank"], found["call"]) == ("?", "__init__")


def test_methods_keep_names_words_and_what_ray_reads_off_them():
    assert (Actor.call.__name__, Actor.call.__doc__) == ("call", "Doubles.")
    assert list(inspect.signature(Actor.call).parameters) == ["self", "number"]
    assert Rank.log_probs.__ray_concurrency_group__ == "learner"
    assert inspect.isgeneratorfunction(Rank.generate)


def test_who_a_rank_is(capsys):
    introduce(2, 8, "10.0.0.1")
    found = THIS_IS.match(capsys.readouterr().err)
    assert found.groups() == ("2", "8", "10.0.0.1", str(os.getpid()))


def test_ranks_get_the_debugger_variables_of_the_driver(monkeypatch):
    monkeypatch.setenv("RAY_DEBUG_POST_MORTEM", "1")
    monkeypatch.setenv("RAY_DEBUG", "legacy")
    monkeypatch.setenv("RAY_AUTH_TOKEN", "secret")
    passed = passed_environment()
    assert (passed["RAY_DEBUG_POST_MORTEM"], passed["RAY_DEBUG"]) == ("1", "legacy")
    assert "RAY_AUTH_TOKEN" not in passed


@pytest.mark.parametrize(
    ("environment", "debugging"),
    [
        ({}, False),
        ({"RAY_DEBUG_POST_MORTEM": "0"}, False),
        ({"RAY_DEBUG_POST_MORTEM": "1"}, True),
        ({"RAY_DEBUG": "1"}, True),
    ],
)
def test_who_debugs_may_pause_one_rank_for_days(environment, debugging):
    wait = collective_timeout_s(environment)
    assert (wait > 24 * 3600) if debugging else (wait == COLLECTIVE_TIMEOUT_S == 1800)


def test_the_driver_says_where_to_attach_to_a_rank_of_its_own(monkeypatch):
    found = [
        Paused("10.0.0.1", 4000, 9, 1, False),
        Paused("10.0.0.2", 4001, 9, 1, False),
        Paused("10.0.0.2", 1, 8, 1, True),
    ]
    monkeypatch.setattr(waiting, "paused", lambda: found)
    member = Member(5, "10.0.0.2", "id", "b", 9, "cpu", 1)
    assert attach_to([member]) == "; rank 5 is paused, attach a debugger to 10.0.0.2:4001"

    def broken():
        raise RuntimeError("the head is gone")

    monkeypatch.setattr(waiting, "paused", broken)
    assert attach_to([member]) == ""


def test_nothing_is_paused_without_a_cluster():
    assert paused() == []
