import os
import subprocess
import sys

from laurel.workers import machine, session
from laurel.workers.session import usable_cores

SETTLE = """
import os, threading
os.environ["OMP_NUM_THREADS"] = "7"
from laurel.workers import machine
machine.usable_cores = lambda: 6
print(machine.settle({ranks}))
import torch
other = []
thread = threading.Thread(target=lambda: other.append(torch.get_num_threads()))
thread.start(); thread.join()
print(torch.get_num_threads(), *other, os.environ["OMP_NUM_THREADS"], os.environ["TOKENIZERS_PARALLELISM"])
"""


def settled(ranks):
    """In a process of its own, since torch reads its threads when it is imported."""
    done = subprocess.run(
        [sys.executable, "-c", SETTLE.format(ranks=ranks)], capture_output=True, text=True, check=True
    )
    return done.stdout.split()


def test_ranks_share_the_cores_of_a_machine_in_every_thread():
    assert settled(2) == ["3", "3", "3", "3", "false"]
    assert settled(16) == ["1", "1", "1", "1", "false"]


def test_cores_are_those_of_the_control_group(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: range(16))
    monkeypatch.setattr(session.Path, "read_text", lambda path: "400000 100000\n")
    assert usable_cores() == 4
    monkeypatch.setattr(session.Path, "read_text", lambda path: "max 100000\n")
    assert usable_cores() == 16


def test_a_process_names_the_file_of_its_stderr():
    assert machine.stderr_file() == os.readlink("/proc/self/fd/2")
