import os
import sys
import time

import pytest

from benchmarks.child import measure, run
from benchmarks.record import Records


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_lines_come_with_their_log(tmp_path):
    lines, log = [], tmp_path / "log"
    ended = run(python("print('a'); print('b')"), limit_s=20, on_line=lines.append, log=log)
    assert (ended.why, lines, log.read_text()) == ("", ["a", "b"], "a\nb\n")


def test_a_failure_names_its_code_and_shows_its_last_lines():
    ended = run(python("print('near the end'); raise SystemExit(3)"), limit_s=20, on_line=lambda line: None)
    assert (ended.why, ended.tail) == ("exit code 3", ("near the end",))


@pytest.mark.parametrize("enough", [False, True])
def test_a_process_is_ended_with_what_it_started(enough):
    """At its limit, which is a failure, or when enough was seen, which is none."""
    code = (
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    lines: list[str] = []
    start = time.monotonic()
    ended = run(
        python(code), limit_s=20 if enough else 1.0, on_line=lines.append, enough=lambda: enough and bool(lines)
    )
    assert time.monotonic() - start < 15
    assert ended.why == ("" if enough else "stopped at its limit of 1 s")
    deadline = time.monotonic() + 5
    while alive(int(lines[0])) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not alive(int(lines[0]))


def alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_rows_of_a_side_are_kept_though_it_fails_later(tmp_path, monkeypatch):
    (tmp_path / "side.py").write_text(
        "from benchmarks.record import show\nshow('decode', rate=7, setting='own')\nraise ValueError('out of memory')\n"
    )
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    path = tmp_path / "out.jsonl"
    measure(Records(path), "side", [], limit_s=20, log=None, about={"side": "peer", "setting": ""})
    first, second = Records(path).rows
    assert (first["what"], first["side"], first["setting"], first["rate"]) == ("decode", "peer", "own", 7)
    assert (second["what"], second["why"]) == ("failed", "exit code 1")
    assert second["tail"][-1] == "ValueError: out of memory"
