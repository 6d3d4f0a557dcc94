"""What every process of a run does at this moment: py-spy's dump, or the one that ranks write when a signal asks."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from laurel.workers.debugger import Paused, paused
from laurel.workers.everywhere import Answer, join, on_each_node
from laurel.workers.failures import STACKS_SIGNAL, THIS_IS

_PY_SPY_S = 20.0
_FAULTHANDLER_S = 5.0
_QUIET_S = 0.3
_PTRACE = (
    "py-spy may not look into it: run as the same user, and allow ptrace (docker --cap-add SYS_PTRACE, Kubernetes "
    "securityContext.capabilities.add: [SYS_PTRACE], or sysctl kernel.yama.ptrace_scope=0 on that node)"
)
_MISSING = "py-spy is not installed on that node: pip install py-spy"


@dataclass(frozen=True)
class Stack:
    """One process. ``how`` says where ``text`` is from, ``problem`` what kept the better way from working."""

    who: str
    pid: int
    text: str
    how: str
    problem: str = ""


def read_cluster(
    address: str, only: Sequence[str] = (), *, variables: bool = False
) -> tuple[list[Answer], list[Paused]]:
    """The stacks of each node as ``Answer.result``, a list of Stack, and who waits for a debugger."""
    import ray

    with join(address):
        drivers = [
            (job["DriverIPAddress"], job["DriverPid"])
            for job in ray._private.state.jobs()  # type: ignore[attr-defined]
            if not job["IsDead"] and job["DriverPid"] != os.getpid()
        ]
        return on_each_node(_dump_here, drivers, variables, only=only), paused()


def _dump_here(ip: str, drivers: Sequence[tuple[str, int]], variables: bool) -> list[Stack]:
    """Of this node: the ranks that its raylet started, and drivers."""
    found = ranks_of(os.getppid())
    stacks = [replace(dump(pid, find_py_spy(), variables=variables), who=who) for pid, who in found]
    for where, pid in drivers:
        if where == ip and Path(f"/proc/{pid}").exists():
            stacks.append(replace(dump(pid, find_py_spy(), variables=variables, signal=False), who="the driver"))
    return stacks


def ranks_of(raylet: int, proc: Path = Path("/proc")) -> list[tuple[int, str]]:
    """Laurel's processes among the children of a raylet: pid, and "rank 3", as far as they said who they are."""
    found = []
    for folder in proc.glob("[0-9]*"):
        try:
            title = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            parent = (folder / "stat").read_text().rpartition(")")[2].split()[1]
            if int(parent) == raylet and title.startswith("ray::Rank"):
                found.append((int(folder.name), _who(folder)))
        except OSError:  # it ended while we looked
            continue
    return sorted(found, key=lambda pair: (pair[1], pair[0]))


def _who(folder: Path) -> str:
    try:
        with open(os.readlink(folder / "fd" / "2"), errors="replace") as log:
            match = next((match for line in log if (match := THIS_IS.match(line))), None)
    except OSError:
        match = None
    return f"rank {match['rank']}" if match else "a rank that has not started"


def find_py_spy() -> str | None:
    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if beside.exists() else shutil.which("py-spy")


def dump(pid: int, py_spy: str | None, *, variables: bool = False, signal: bool = True) -> Stack:
    """The stacks of one process of this machine. ``signal``: a process that handles STACKS_SIGNAL may be sent it."""
    problem = _MISSING
    if py_spy is not None:
        command = [py_spy, "dump", "--pid", str(pid), *["--locals"] * variables]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_PY_SPY_S, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            problem = f"py-spy: {error}"
        else:
            if done.returncode == 0:
                return Stack("", pid, done.stdout.rstrip(), "py-spy")
            said = (done.stderr.strip().splitlines() or [f"code {done.returncode}"])[0]
            refused = any(sign in done.stderr.lower() for sign in ("permission", "not permitted", "ptrace"))
            problem = _PTRACE if refused else f"py-spy: {said}"
    if not signal:
        return Stack("", pid, "", "nothing", problem)
    if not catches(pid, STACKS_SIGNAL):  # it would end the process
        return Stack("", pid, "", "nothing", f"{problem}; and it does not answer {STACKS_SIGNAL.name}")
    return Stack("", pid, _by_signal(pid), f"faulthandler, by {STACKS_SIGNAL.name}", problem)


def catches(pid: int, signal: int) -> bool:
    """Whether a process has a handler of its own for ``signal``."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return False
    mask = next((int(line.split()[1], 16) for line in lines if line.startswith("SigCgt:")), 0)
    return bool(mask >> (signal - 1) & 1)


def _by_signal(pid: int) -> str:
    """Send the signal and read what the process then adds to its log."""
    log = Path(os.readlink(f"/proc/{pid}/fd/2"))
    start = size = log.stat().st_size
    os.kill(pid, STACKS_SIGNAL)
    deadline = time.monotonic() + _FAULTHANDLER_S
    changed = time.monotonic()
    while time.monotonic() < deadline and (size == start or time.monotonic() - changed < _QUIET_S):
        time.sleep(0.05)
        if log.stat().st_size != size:
            size, changed = log.stat().st_size, time.monotonic()
    with log.open("rb") as stream:
        stream.seek(start)
        return stream.read().decode(errors="replace").rstrip()


def show(answers: Sequence[Answer], waiting: Sequence[Paused]) -> str:
    """What `laurel stacks` prints."""
    lines = [str(one) for one in waiting]
    for answer in answers:
        stacks: list[Stack] = answer.result or []
        if answer.error or not stacks:
            lines += ["", f"== {answer}: {answer.error or 'no process of Laurel'}"]
        for stack in stacks:
            lines += ["", f"== {stack.who} on {answer}, pid {stack.pid}, by {stack.how}"]
            lines += [stack.problem] * bool(stack.problem) + [stack.text] * bool(stack.text)
    return "\n".join(lines).lstrip("\n")
