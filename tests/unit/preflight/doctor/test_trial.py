import time

import pytest

from laurel.preflight.doctor import trial as of_ranks
from laurel.preflight.doctor.trial import Outcome, Plan, Trial, bus, describe, judge

PLAN = Plan({"a": (0,), "b": (1,)}, "cpu")
GOOD = Outcome(100 << 20, 0.1, "eth0")
TAKEN = {"a": "eth0", "b": "eth0"}


def test_the_speed_of_a_ring():
    assert bus(Outcome(10**9, 1.0), 2) == 1e9
    assert bus(Outcome(10**9, 0.5), 8) == 3.5e9


def test_a_good_one_is_a_fact():
    outcomes = {"a": [GOOD], "b": [Outcome(100 << 20, 0.2, "eth0")]}
    assert describe(PLAN, outcomes) == "all-reduce of 100 MiB over 2 nodes (2 ranks, gloo on eth0): 200 ms, 0.5 GB/s"
    assert judge(PLAN, outcomes, TAKEN) == []


@pytest.mark.parametrize("of_b", [[Outcome(problem="no result after 14 s")], []])
def test_one_that_hangs_names_the_interfaces(of_b):
    outcomes = {"a": [Outcome(problem="no result after 14 s")], "b": of_b}
    assert describe(PLAN, outcomes) == ""
    (found,) = judge(PLAN, outcomes, {"a": "docker0", "b": None})
    assert (found.topic, found.severity) == ("bandwidth", "error")
    assert found.what.startswith(
        "an all-reduce by gloo over docker0 on a, no interface on b failed: a: no result after"
    )
    assert ("b: no result after 14 s" if of_b else "b: did not answer") in found.what
    assert "set GLOO_SOCKET_IFNAME" in found.cure


@pytest.mark.parametrize(
    ("plan", "cure"),
    [
        (PLAN, "set GLOO_SOCKET_IFNAME to the fastest network"),
        (Plan({"a": (0, 1), "b": (2, 3)}, "cuda"), "whether NCCL takes InfiniBand"),
        (Plan({"a": (0, 1)}, "cuda"), "nvidia-smi topo -m"),
    ],
)
def test_a_slow_one_is_warned_about(plan, cure):
    slow = Outcome(1 << 20, 0.5, "eth0")
    outcomes = {name: [slow] * len(ranks) for name, ranks in plan.ranks.items()}
    (found,) = judge(plan, outcomes, TAKEN)
    assert (found.topic, found.severity) == ("bandwidth", "warning")
    assert "runs at 0.00 GB/s" in found.what
    assert cure in found.cure


def test_two_processes_of_this_machine():
    trials = [Trial([rank], 2, "127.0.0.1", "cpu", None) for rank in (0, 1)]
    try:
        address = trials[0].address(60)
        assert address.startswith("127.0.0.1:")
        for trial in trials:
            trial._ranks[0].tell(address)
        (first,), (second,) = (trial.run(address, 30) for trial in trials)
    finally:
        for trial in trials:
            trial.close()
    assert (first.problem, second.problem) == ("", "")
    assert (first.bytes, first.interface) == (8 << 20, "lo")
    assert first.seconds > 0


def test_a_rank_that_waits_for_nobody_is_ended():
    trial = Trial([0], 2, "127.0.0.1", "cpu", None)
    try:
        address = trial.address(60)
        (outcome,) = trial.run(address, 0.5)
    finally:
        start = time.monotonic()
        trial.close()
    assert outcome.problem == "no result after 0 s"
    assert trial._ranks[0]._process.poll() is not None
    assert time.monotonic() - start < 5


def test_a_rank_that_fails_says_why(monkeypatch):
    monkeypatch.setattr(of_ranks, "_MODULE", "laurel.no_such_module")
    trial = Trial([0], 2, "127.0.0.1", "cpu", None)
    try:
        assert trial.address(60) == ""
        (outcome,) = trial.run("", 5)
    finally:
        trial.close()
    assert "No module named laurel.no_such_module" in outcome.problem
