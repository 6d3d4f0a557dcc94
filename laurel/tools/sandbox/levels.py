"""How well this machine can shut a program in, and the command that does it.

``bubblewrap``: namespaces of its own for files, processes and network, by the program ``bwrap``.
``landlock``: the same files and the same absence of network, by rules of the kernel that need no program.
``limits``: limits of time, memory, processes and output only.
System calls are filtered at every level where the kernel can (x86_64 and aarch64).
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from laurel.tools.sandbox import confine
from laurel.tools.sandbox.outcome import Limits

LevelName = Literal["bubblewrap", "landlock", "limits"]
LEVELS: tuple[LevelName, ...] = ("bubblewrap", "landlock", "limits")  # the best first

HERE = Path(__file__).parent
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc/ld.so.cache", "/etc/localtime")
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
INSIDE = "/sandbox"
CONFINE = "/sandbox.confine.py"
CAP_SETGID, CAP_SETUID = 6, 7
PROBE_S = 20.0


@dataclass(frozen=True)
class Level:
    """``why`` says why it is not a better one; empty at the best."""

    name: LevelName
    why: str = ""
    filtered: bool = True
    """Whether system calls are filtered."""
    scoped: bool = True
    """Whether the kernel keeps its signals inside (Landlock's version 6); otherwise the filter allows none at all."""

    def __str__(self) -> str:
        let_in = []
        if self.name == "limits":
            let_in.append("files of this user can be read and written")
            if not self.filtered:
                let_in.append("the network can be reached")
        missing = f" ({self.why})" if self.why else ""
        return f"sandbox: {self.name}{missing}" + (f"; {' and '.join(let_in)}" if let_in else "")


def best_level() -> Level:
    """The best level that works here."""
    return levels_here()[0]


@functools.cache
def levels_here() -> tuple[Level, ...]:
    """The levels that work here, the best first; tried once."""
    filtered, version = confine.has_seccomp(), confine.landlock_version()
    found, why = [], _bubblewrap_missing()
    if not why:
        found.append(Level("bubblewrap", "", filtered))
    if version >= 1 and filtered:
        found.append(Level("landlock", why, filtered, scoped=version >= 6))
    else:
        why += ", and this kernel has no Landlock"
    return (*found, Level("limits", why, filtered, scoped=False))


def _bubblewrap_missing() -> str:
    """Why bubblewrap does not work here; empty if it does."""
    if shutil.which("bwrap") is None:
        return "bubblewrap is not installed"
    try:
        done = subprocess.run(
            [*_bubblewrap(str(HERE / "confine.py"), 1 << 20), "/bin/true"],
            capture_output=True,
            timeout=PROBE_S,
            check=False,
            text=True,
        )
    except subprocess.TimeoutExpired:
        return f"bubblewrap did not answer for {PROBE_S:.0f} s"
    if done.returncode == 0:
        return ""
    lines = done.stderr.strip().splitlines()
    return f"bubblewrap does not work here: {lines[-1] if lines else f'exit code {done.returncode}'}"


@functools.cache
def python_folders() -> tuple[str, ...]:
    """What this interpreter and its packages consist of."""
    found = [os.path.realpath(prefix) for prefix in (sys.prefix, sys.base_prefix, sys.exec_prefix)]
    return tuple(dict.fromkeys(path for path in found if not path.startswith(("/usr/", "/lib"))))


def python() -> str:
    """This interpreter, by a path without links to folders that the sandbox does not have."""
    return os.path.join(os.path.realpath(sys.prefix), "bin", os.path.basename(sys.executable))


def shut_in(
    level: Level,
    program: Sequence[str],
    *,
    env: Mapping[str, str],
    folder: str,
    limits: Limits,
    user: int | None,
    ready_fd: int,
) -> list[str]:
    """The command that runs ``program`` in ``folder`` under ``level``, as ``user`` (of ``own_user``)."""
    inside = level.name == "bubblewrap"
    spec: dict[str, Any] = {
        "command": [*program],
        "env": {**env},
        "limits": _resources(limits, all_users=not inside and user is None),
        "uid": user,
        "reads_all": not inside and not _for_everyone(python_folders()),
        "read": [*SYSTEM, *python_folders()] if level.name == "landlock" else None,
        "write": [folder, *DEVICES],
        "signals": inside or level.scoped,
        "ready": ready_fd,
    }
    script = CONFINE if inside else str(HERE / "confine.py")
    confined = [python(), "-I", "-S", script, json.dumps(spec)]
    if not inside:
        return confined
    return [*_bubblewrap(folder, limits.files_mib << 20), *confined]


def _bubblewrap(source: str, files_bytes: int) -> list[str]:
    """``source`` is the folder, or file, whose contents the program finds; what it writes is gone with it."""
    command = ["bwrap", "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"]
    if os.geteuid() == 0:
        command += ["--cap-drop", "ALL", "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
    else:
        command += ["--unshare-user", "--disable-userns"]
    command += ["--die-with-parent", "--new-session", "--clearenv"]
    for path in SYSTEM:
        if os.path.islink(path):
            command += ["--symlink", os.readlink(path), path]
        elif os.path.exists(path):
            command += ["--ro-bind", path, path]
    for path in python_folders():
        for parent in reversed(Path(path).parents[:-1]):
            command += ["--perms", "0755", "--dir", str(parent)]  # else only root could enter it
        command += ["--ro-bind", path, path]
    command += ["--proc", "/proc", "--dev", "/dev", "--size", str(files_bytes), "--perms", "0777", "--tmpfs", "/tmp"]
    command += ["--size", str(files_bytes), "--perms", "0777", "--tmpfs", "/dev/shm", "--remount-ro", "/dev"]
    command += ["--ro-bind", source, INSIDE, "--ro-bind", str(HERE / "confine.py"), CONFINE]
    return [*command, "--chdir", "/tmp", "--remount-ro", "/"]


def _resources(limits: Limits, *, all_users: bool) -> dict[str, int]:
    """By name of the RLIMIT. Where the limit of processes counts a user's others too, it is raised by those."""
    return {
        "AS": limits.memory_mib << 20,
        "CPU": int(limits.time_s) + 2,
        "FSIZE": limits.files_mib << 20,
        "NOFILE": limits.open_files,
        "NPROC": limits.processes + (_tasks_of_user() if all_users else 0),
        "CORE": 0,
    }


def _tasks_of_user() -> int:
    count = 0
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                if entry.stat().st_uid == os.geteuid():
                    count += len(os.listdir(f"/proc/{entry.name}/task"))
            except OSError:
                continue  # it ended meanwhile
    return count


_runs = itertools.count(os.getpid() * 31)


def own_user(level: Level) -> int | None:
    """A user that nobody else is, so that other users' files and processes are out of reach and its own countable; None
    if this process may not choose, or that user could not read this interpreter.

    Of the range that systemd sets aside for users that exist for a moment (61184 to 65519).
    """
    needed = {CAP_SETGID, CAP_SETUID}
    if level.name != "bubblewrap" and not _for_everyone(python_folders()):
        needed |= {confine.CAP_DAC_READ_SEARCH}
    if os.geteuid() != 0 or not needed <= _capabilities():
        return None
    return 61184 + next(_runs) % 4336


@functools.cache
def _capabilities() -> frozenset[int]:
    """Numbers of those that this process may use."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("CapEff:"))
    bits = int(line.split()[1], 16)
    return frozenset(number for number in range(64) if bits >> number & 1)


@functools.cache
def _for_everyone(paths: tuple[str, ...]) -> bool:
    """Whether every user may enter ``paths``."""
    folders = {folder for path in paths for folder in (Path(path), *Path(path).parents)}
    return all(folder.stat().st_mode & stat.S_IXOTH for folder in folders)
