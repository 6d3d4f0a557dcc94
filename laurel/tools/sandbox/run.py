"""One Python program in the sandbox, from its source to its outcome."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from laurel.tools.sandbox.levels import HERE, INSIDE, Level, best_level, own_user, python, shut_in
from laurel.tools.sandbox.outcome import Ending, Limits, Outcome, SandboxError

PROGRAM = "main.py"
GRACE_S = 10.0  # for setting up and for killing, beyond the program's own time
CHUNK = 1 << 16
BWRAP_ITSELF = 2  # processes


def run_python(source: str, *, stdin: str = "", limits: Limits | None = None, level: Level | None = None) -> Outcome:
    """Run ``source`` as ``__main__`` of this Python, with its packages; blocks until nothing of it is left.

    It starts in an empty folder that it may write to and that is gone afterwards, with an environment that tells
    it nothing. ``level`` is the best of this machine unless given. Thread-safe. Raises SandboxError if no program
    can be run.
    """
    limits, level = limits or Limits(), level or best_level()
    user = own_user(level)
    with _folder(source, user) as folder:
        inside = level.name == "bubblewrap"
        home = "/tmp" if inside else folder
        ready_fd = 100
        command = shut_in(
            level,
            [python(), "-I", "-B", "-X", "utf8", f"{INSIDE if inside else folder}/{PROGRAM}"],
            env={"PATH": "/usr/bin:/bin", "HOME": home, "TMPDIR": home, "LANG": "C.UTF-8", "OMP_NUM_THREADS": "1"}
            | {"OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
            folder=folder,
            limits=limits,
            user=user,
            ready_fd=ready_fd,
        )
        return _supervised(
            {
                "command": command,
                "env": {"PATH": "/usr/bin:/bin"},
                "folder": folder,
                "ready_fd": ready_fd,
                "time_s": limits.time_s,
                "memory_bytes": limits.memory_mib << 20,
                "processes": limits.processes + BWRAP_ITSELF * inside,
                "files_bytes": None if inside else limits.files_mib << 20,
            },
            stdin.encode("utf-8", "surrogatepass"),
            limits,
        )


@contextmanager
def _folder(source: str, user: int | None) -> Iterator[str]:
    """A folder with the program, which ``user`` owns."""
    folder = tempfile.mkdtemp(prefix="laurel-sandbox-")
    try:
        file = Path(folder, PROGRAM)
        file.write_bytes(source.encode("utf-8", "surrogatepass"))
        if user is not None:
            os.chown(folder, user, user)
            os.chown(file, user, user)
        yield folder
    finally:
        # rm neither follows links nor minds how deep folders are nested, as shutil.rmtree does
        subprocess.run(["rm", "-rf", "--", folder], check=True, stdin=subprocess.DEVNULL)


def _supervised(spec: dict[str, Any], stdin: bytes, limits: Limits) -> Outcome:
    status, told = os.pipe()
    try:
        process = subprocess.Popen(
            [python(), "-I", "-S", str(HERE / "supervisor.py"), json.dumps(spec | {"status": told})],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=(told,),
            env={},
            start_new_session=True,
        )
    except OSError as error:
        os.close(status)
        raise SandboxError(f"the sandbox cannot be started: {error}") from error
    finally:
        os.close(told)
    with process, open(status, "rb") as answer:
        try:
            exchange = _Exchange(process, stdin, limits)
            exchange.run(deadline=time.monotonic() + limits.time_s + GRACE_S)
            said = answer.read()
        finally:
            if process.poll() is None:
                process.terminate()  # it kills what it started, then ends
    errors = exchange.text(process.stderr)
    if not said:
        raise SandboxError(f"the sandbox's supervisor ended with {process.returncode}: {errors[-2000:]}")
    result = json.loads(said)
    if "error" in result:
        raise SandboxError(f"the sandbox's supervisor failed: {result['error']}")
    if not result["begun"] and result["ending"] == "exited":
        raise SandboxError(f"the sandbox cannot be set up: {errors.strip()[-2000:]}")
    ending: Ending = "output" if exchange.flooded else result["ending"]
    return Outcome(
        ending=ending,
        exit_code=result["exit_code"] if ending == "exited" else None,
        stdout=exchange.text(process.stdout),
        stderr=errors,
        seconds=result["seconds"],
    )


class _Exchange:
    """Feeds a program's stdin and gathers what it says, up to the limit of output."""

    def __init__(self, process: subprocess.Popen[bytes], stdin: bytes, limits: Limits):
        self.process, self.limits, self.flooded = process, limits, False
        self._left = memoryview(stdin)
        self._got: dict[Any, bytearray] = {process.stdout: bytearray(), process.stderr: bytearray()}

    def text(self, stream: IO[bytes] | None) -> str:
        return bytes(self._got[stream][: self.limits.output_bytes]).decode("utf-8", "replace")

    def run(self, *, deadline: float) -> None:
        """Until the program and all who hold its output are gone. Raises SandboxError at ``deadline``."""
        with selectors.DefaultSelector() as selector:
            for stream in self._got:
                selector.register(stream, selectors.EVENT_READ)
            stdin = self.process.stdin
            assert stdin is not None
            os.set_blocking(stdin.fileno(), False)
            selector.register(stdin, selectors.EVENT_WRITE)
            while selector.get_map():
                left = deadline - time.monotonic()
                if left <= 0:
                    self.process.send_signal(signal.SIGTERM)
                    raise SandboxError(f"the sandbox did not end a program in time ({self.limits.time_s:g} s)")
                for key, _ in selector.select(left):
                    more = self._write() if key.fileobj is stdin else self._read(key.fileobj)
                    if not more:
                        selector.unregister(key.fileobj)
                        if key.fileobj is stdin:
                            stdin.close()

    def _write(self) -> bool:
        """Whether there is more to write."""
        if not self._left:
            return False
        try:
            self._left = self._left[os.write(self.process.stdin.fileno(), self._left[:CHUNK]) :]  # type: ignore[union-attr]
        except BlockingIOError:
            return True
        except BrokenPipeError:
            return False  # a program need not read what it is given
        return bool(self._left)

    def _read(self, stream: Any) -> bool:
        """Whether there may be more to read. What comes after the limit is read and thrown away."""
        data = os.read(stream.fileno(), CHUNK)
        got = self._got[stream]
        if len(got) <= self.limits.output_bytes:
            got += data
        if len(got) > self.limits.output_bytes and not self.flooded:
            self.flooded = True
            self.process.send_signal(signal.SIGTERM)
        return bool(data)
