"""Starts one program, watches it, and leaves nothing of it. A script of the standard library alone.

``python -I -S supervisor.py SPEC`` with SPEC a JSON object: ``command``, ``env``, ``folder`` (where it starts),
``status`` (a file descriptor that gets the ending as JSON), ``ready_fd`` (the number under which the command finds a
pipe for "ok"), ``time_s``, ``memory_bytes``, ``processes``, and ``files_bytes`` (of ``folder``; null: not watched).
SIGTERM ends it early. Every process that the program leaves becomes a child of this one (a subreaper), however it
detached itself, and is killed before this one ends.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
TICK_S = 0.02
MOST_FILES = 10_000
PAGE = os.sysconf("SC_PAGE_SIZE")
LISTS_CHILDREN = os.path.exists(f"/proc/self/task/{os.getpid()}/children")
WATCHED = {signal.SIGCHLD, signal.SIGTERM}


def main() -> None:
    spec = json.loads(sys.argv[1])
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED)
    ready, told = os.pipe()
    os.dup2(told, spec["ready_fd"], inheritable=True)
    os.close(told)
    started = time.monotonic()
    child = subprocess.Popen(
        spec["command"],
        env=spec["env"],
        cwd=spec["folder"],
        pass_fds=(spec["ready_fd"],),
        start_new_session=True,
        preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_UNBLOCK, WATCHED) and None,
    )
    os.close(spec["ready_fd"])
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):  # else the other ends of these pipes would wait for this process
        os.dup2(nothing, stream)
    try:
        ending, code = watch(child.pid, spec, started)
        answer = {"ending": ending, "exit_code": code, "seconds": time.monotonic() - started}
    except Exception as error:  # told to the one who waits, since nobody reads what this process prints
        answer = {"error": f"{type(error).__name__}: {error}"}
    finally:
        end_all()
    answer["begun"] = os.read(ready, 9) == b"ok"
    os.write(spec["status"], json.dumps(answer).encode())


def watch(child: int, spec: dict, started: float) -> tuple[str, int | None]:
    """Until the child ends or a limit is reached: how, and its exit code."""
    while True:
        got = signal.sigtimedwait(WATCHED, TICK_S)
        if got is not None and got.si_signo == signal.SIGTERM:
            return "stopped", None
        while (reaped := _reap()) is not None:
            if reaped[0] == child:
                return "exited", os.waitstatus_to_exitcode(reaped[1])
        if time.monotonic() - started > spec["time_s"]:
            return "time", None
        members = list(descendants(os.getpid()))
        if memory_of(members, spec["memory_bytes"]) > spec["memory_bytes"]:
            return "memory", None
        if sum(threads for _, threads, _ in members) > spec["processes"]:
            return "processes", None
        if spec["files_bytes"] is not None and too_many_files(spec["folder"], spec["files_bytes"]):
            return "files", None


def descendants(pid: int) -> Iterator[tuple[int, int, int]]:
    """Of ``pid``, at any depth: process id, number of threads, resident bytes; zombies left out."""
    for child in _children(pid):
        with contextlib.suppress(OSError, IndexError):
            fields = _read(f"/proc/{child}/stat").rpartition(b")")[2].split()
            if fields[0] not in (b"Z", b"X"):
                yield child, int(fields[17]), int(fields[21]) * PAGE
        yield from descendants(child)


def _children(pid: int) -> list[int]:
    found: list[int] = []
    if not LISTS_CHILDREN:
        return [child for child, parent in _parents() if parent == pid]
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError):
                found += map(int, _read(f"/proc/{pid}/task/{thread}/children").split())
    return found


def _parents() -> Iterator[tuple[int, int]]:
    """Every process and its parent, for kernels that do not list children."""
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError, IndexError):
                yield int(name), int(_read(f"/proc/{name}/stat").rpartition(b")")[2].split()[1])


def memory_of(members: list[tuple[int, int, int]], limit: int) -> int:
    """Bytes of all together. Pages that forks share are counted once, which is only asked if it decides."""
    resident = sum(size for _, _, size in members)
    if resident <= limit:
        return resident
    return sum(_proportional(pid, size) for pid, _, size in members)


def _proportional(pid: int, resident: int) -> int:
    try:
        for line in _read(f"/proc/{pid}/smaps_rollup").splitlines():
            if line.startswith(b"Pss:"):
                return int(line.split()[1]) * 1024
    except PermissionError:
        return resident  # not ours to look into: what it has by itself is the most that it can be
    except OSError:
        pass
    return 0  # it has ended since it was listed, and its memory with it


def too_many_files(folder: str, limit: int) -> bool:
    """More bytes than ``limit``, more files than MOST_FILES, or folders so deep that nobody can count them."""
    count = total = 0
    left = [folder]
    while left:
        try:
            with os.scandir(left.pop()) as entries:
                for entry in entries:
                    with contextlib.suppress(FileNotFoundError):
                        total += entry.stat(follow_symlinks=False).st_blocks * 512
                        left += [entry.path] if entry.is_dir(follow_symlinks=False) else []
                    count += 1
                    if count > MOST_FILES or total > limit:
                        return True
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            continue  # gone, or closed by its owner, whose files were counted until then
        except OSError as error:
            if error.errno != errno.ENAMETOOLONG:
                raise
            return True
    return False


def end_all() -> None:
    """Kill every descendant. They are stopped first, so that none forks while the others are found."""
    while True:
        members = [pid for pid, _, _ in descendants(os.getpid())]
        for how in (signal.SIGSTOP, signal.SIGKILL):
            for pid in members:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, how)
        with contextlib.suppress(ChildProcessError):
            while _reap(quiet=False) is not None:
                pass
            time.sleep(0.001)
            continue
        return  # no child is left


def _reap(*, quiet: bool = True) -> tuple[int, int] | None:
    """Process id and status of a child that ended; None if none did. Without ``quiet``, an error if there is none."""
    try:
        pid, status = os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        if quiet:
            return None
        raise
    return (pid, status) if pid else None


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


if __name__ == "__main__":
    main()
