"""A Ray cluster started by hand on this machine, as the guide says, but on ports and in a folder of its own.

Every process is started with ``--block`` and ended by SIGTERM to its pid: ``ray stop`` would end every Ray of this
user.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

BIN = Path(sys.executable).parent
TOKEN = "0123456789abcdef" * 4
_UP_S = 120


@dataclass(frozen=True)
class HandStarted:
    """``environment`` is what a shell of this user must have set to speak with the cluster."""

    address: str
    dashboard: str
    environment: dict[str, str]
    home: Path

    def ray(self, *words: str, timeout_s: float = 120, folder: Path | None = None) -> str:
        """Output of one ``ray`` command; an error with that output if it fails."""
        done = subprocess.run(
            [str(BIN / "ray"), *words],
            env=self.environment,
            cwd=folder,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=timeout_s,
            check=False,
        )
        assert done.returncode == 0, f"ray {' '.join(words)} ended with {done.returncode}:\n{done.stdout}"
        return done.stdout


@contextmanager
def cluster_by_hand(nodes: int) -> Iterator[HandStarted]:
    """``ray start --head`` and ``ray start --address`` for the other nodes; one CPU each."""
    folder = Path(tempfile.mkdtemp(prefix="lh-", dir="/tmp"))  # short: Ray puts sockets below it
    ports = free_ports(3 + nodes)
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "LAUREL_"))},
        "PATH": f"{BIN}:{os.environ['PATH']}",
        "HOME": str(folder),
        "RAY_TMPDIR": str(folder),
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": TOKEN,
        "WANDB_MODE": "offline",
        "WANDB_DIR": str(folder),
    }
    ip = own_address()
    head = ["--head", f"--port={ports[0]}", "--dashboard-host=127.0.0.1", f"--dashboard-port={ports[1]}"]
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for number in range(nodes):
            # Real nodes have a /tmp of their own; in a shared one the second copy of a job's code replaces the first
            own = f"--temp-dir={folder}/{number}"
            place = (
                [*head, f"--ray-client-server-port={ports[2]}"] if number == 0 else [f"--address={ip}:{ports[0]}", own]
            )
            processes.append(_start(place, ip, ports[3 + number], folder / f"node{number}.log", environment))
            _wait_for(folder / f"node{number}.log", processes[-1])
        yield HandStarted(f"{ip}:{ports[0]}", f"http://127.0.0.1:{ports[1]}", environment, folder)
    finally:
        for process in reversed(processes):
            _end(process)
        shutil.rmtree(folder, ignore_errors=True)


def _start(place: list[str], ip: str, agent_port: int, log: Path, environment: dict[str, str]) -> subprocess.Popen:
    words = [
        *("start", "--block", "--disable-usage-stats", "--num-cpus=1", "--num-gpus=0", f"--node-ip-address={ip}"),
        *("--min-worker-port=0", "--max-worker-port=0", f"--dashboard-agent-listen-port={agent_port}"),
        *("--object-store-memory=100000000", *place),
    ]
    with log.open("wb") as file:
        return subprocess.Popen([str(BIN / "ray"), *words], env=environment, stdout=file, stderr=subprocess.STDOUT)


def _wait_for(log: Path, process: subprocess.Popen) -> None:
    deadline = time.monotonic() + _UP_S
    while "Ray runtime started" not in log.read_text():
        assert process.poll() is None, f"ray start ended with {process.returncode}:\n{log.read_text()}"
        assert time.monotonic() < deadline, f"ray start took more than {_UP_S} s:\n{log.read_text()}"
        time.sleep(0.2)


def _end(process: subprocess.Popen) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    try:
        process.wait(30)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def own_address() -> str:
    """This machine's address as Ray will use it; no packet is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("10.255.255.255", 1))
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"


def free_ports(count: int) -> list[int]:
    """Ports that were free a moment ago, all different."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()
