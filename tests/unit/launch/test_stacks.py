"""Stacks of real processes, by py-spy and by the signal; and which processes are meant."""

import signal
import subprocess
import sys
import time
from contextlib import contextmanager

import pytest

from laurel.launch import stacks
from laurel.launch.stacks import Stack, catches, dump, find_py_spy, ranks_of, show
from laurel.types import LaurelError
from laurel.workers.debugger import Paused
from laurel.workers.everywhere import Answer, chosen_nodes

SLEEPER = """
import time
{first}
def deep_in_thought():
    print("ready", flush=True)
    time.sleep(60)
deep_in_thought()
"""
REGISTER = "from laurel.workers.failures import stacks_on_signal; stacks_on_signal()"


@contextmanager
def sleeper(tmp_path, first):
    log = tmp_path / "err"
    with log.open("wb") as err:
        process = subprocess.Popen(
            [sys.executable, "-c", SLEEPER.format(first=first)], stdout=subprocess.PIPE, stderr=err, text=True
        )
    try:
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_py_spy_shows_the_function_that_runs(tmp_path):
    with sleeper(tmp_path, "") as process:
        stack = dump(process.pid, find_py_spy())
        assert process.poll() is None
    if stack.problem.startswith("py-spy may not look"):
        pytest.skip(stack.problem)
    assert (stack.how, stack.problem) == ("py-spy", "")
    assert "deep_in_thought" in stack.text


def test_without_py_spy_a_rank_writes_its_stacks_and_goes_on(tmp_path):
    with sleeper(tmp_path, REGISTER) as process:
        assert catches(process.pid, signal.SIGUSR2)
        for _ in range(2):
            stack = dump(process.pid, None)
            assert "in deep_in_thought" in stack.text
        assert stack.text.count("in deep_in_thought") == 1, "only what it wrote this time"
        assert process.poll() is None
    assert (stack.how, stack.problem) == ("faulthandler, by SIGUSR2", stacks._MISSING)


@pytest.mark.parametrize(("said", "problem"), [("Permission Denied: Try running again", "SYS_PTRACE"), ("odd", "odd")])
def test_a_py_spy_that_fails_says_why_and_how_to_cure_it(said, problem, tmp_path):
    refusing = tmp_path / "py-spy"
    refusing.write_text(f"#!/bin/sh\necho '{said}' >&2\nexit 1\n")
    refusing.chmod(0o755)
    with sleeper(tmp_path, REGISTER) as process:
        stack = dump(process.pid, str(refusing))
    assert problem in stack.problem
    assert "in deep_in_thought" in stack.text


def test_a_process_that_would_die_of_the_signal_never_gets_it(tmp_path):
    with sleeper(tmp_path, "") as process:
        assert not catches(process.pid, signal.SIGUSR2)
        stack = dump(process.pid, None)
        driver = dump(process.pid, None, signal=False)
        time.sleep(0.2)
        assert process.poll() is None
    assert (stack.how, stack.text) == ("nothing", "")
    assert "pip install py-spy" in stack.problem
    assert "does not answer SIGUSR2" in stack.problem
    assert driver.problem == stacks._MISSING


def test_ranks_are_the_children_of_the_raylet_and_named_as_they_said(tmp_path):
    log = tmp_path / "worker.err"
    log.write_text(":actor_name:Rank\nlaurel: this is rank 3 of 4 on node 10.0.0.1 (pid 31)\n")
    rows = [(31, 7, "ray::Rank.update_actor", log), (32, 8, "ray::Rank", log), (33, 7, "ray::IDLE", log)]
    for pid, parent, title, err in [*rows, (34, 7, "ray::Rank.__init__", tmp_path / "absent")]:
        (tmp_path / str(pid) / "fd").mkdir(parents=True)
        (tmp_path / str(pid) / "cmdline").write_bytes(title.encode() + b"\0\0")
        (tmp_path / str(pid) / "stat").write_text(f"{pid} (ray::Rank) (x)) S {parent} 1 1")
        (tmp_path / str(pid) / "fd" / "2").symlink_to(err)
    assert ranks_of(7, tmp_path) == [(34, "a rank that has not started"), (31, "rank 3")]


def test_what_is_shown():
    answers = [
        Answer("10.0.0.1", "a", [Stack("rank 0", 5, "text", "py-spy")]),
        Answer("10.0.0.2", "b", [Stack("rank 1", 6, "", "nothing", "why")]),
        Answer("10.0.0.3", "c", []),
        Answer("10.0.0.4", "d", error="did not answer within 60 s"),
    ]
    assert show(answers, [Paused("10.0.0.1", 4000, 5, 1, False)]).splitlines() == [
        "worker (pid 5) is paused: attach a debugger to 10.0.0.1:4000",
        "",
        "== rank 0 on node 10.0.0.1 (a), pid 5, by py-spy",
        "text",
        "",
        "== rank 1 on node 10.0.0.2 (b), pid 6, by nothing",
        "why",
        "",
        "== node 10.0.0.3 (c): no process of Laurel",
        "",
        "== node 10.0.0.4 (d): did not answer within 60 s",
    ]


def test_nodes_by_address_name_or_id_and_dead_ones_only_if_none_took_their_place():
    def node(ip, host, id, alive=True):
        return {"NodeManagerAddress": ip, "NodeManagerHostname": host, "NodeID": id, "Alive": alive}

    a, old, b = node("10.0.0.1", "a", "aaaaaa11"), node("10.0.0.1", "a", "cccccc11", False), node("10.0.0.2", "b", "bb")
    gone = node("10.0.0.3", "c", "dddddd11", False)
    assert chosen_nodes([a, old, b, gone], []) == [a, b, gone]
    assert chosen_nodes([a, b], ["b"]) == [b]
    assert chosen_nodes([a, b], ["10.0.0.1"]) == [a]
    assert chosen_nodes([a, b], ["aaaaaa"]) == [a]
    with pytest.raises(LaurelError, match=r"--node z: no such node; there are 10.0.0.1 \(a\), 10.0.0.2 \(b\)"):
        chosen_nodes([a, b], ["z"])
