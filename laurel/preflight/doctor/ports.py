"""Whether nodes reach each other on ports that the system chooses, as ranks' meetings, gloo and NCCL need."""

from __future__ import annotations

import errno
import secrets
import socket
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from laurel.preflight.doctor.finding import Finding

CONNECT_S = 5.0
_AT_ONCE = 32
RAY_PORTS = {6379: "--port", 8265: "--dashboard-port"}
"""What ``ray start --head`` takes, and the option that moves it."""


class Listener:
    """Answers each connection to ``address`` with a word of its own, so that no other service can pass for it."""

    def __init__(self, address: str):
        self.word = secrets.token_hex(8)
        self._socket = socket.create_server((address, 0), backlog=1024)
        self.port = int(self._socket.getsockname()[1])
        threading.Thread(target=self._serve, daemon=True, name="listener").start()

    def close(self) -> None:
        with suppress(OSError):  # wakes the thread that waits in accept
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:  # closed
                return
            with connection, suppress(OSError):  # the caller is gone
                connection.sendall(self.word.encode())


Door = tuple[str, int, str]
"""Address, port and word of a Listener."""


def knock(door: Door, timeout_s: float = CONNECT_S) -> str:
    """Why a listener cannot be reached from here; "" if it can."""
    address, port, word = door
    try:
        with socket.create_connection((address, port), timeout=timeout_s) as connection:
            connection.settimeout(timeout_s)
            heard = b""
            while len(heard) < len(word) and (more := connection.recv(64)):
                heard += more
    except TimeoutError:
        return f"no answer within {timeout_s:.0f} s"
    except OSError as error:
        return (error.strerror or str(error)).lower()
    return "" if heard.decode(errors="replace") == word else "another program answers there"


def knock_all(doors: Mapping[str, Door]) -> dict[str, str]:
    """``knock`` at each, many at once."""
    with ThreadPoolExecutor(min(_AT_ONCE, max(1, len(doors)))) as pool:
        return dict(zip(doors, pool.map(knock, doors.values()), strict=True))


def judge(problems: Mapping[str, Mapping[str, str]], ports: str = "") -> list[Finding]:
    """``problems``: for each node, why it cannot reach the others ("" where it can); ``ports``: the system's range."""
    found = []
    for name, others in problems.items():
        reasons: dict[str, list[str]] = {}
        for other, problem in others.items():
            if problem:
                reasons.setdefault(problem, []).append(other)
        for problem, unreached in reasons.items():
            what = f"cannot connect to {_some(unreached)}: {problem}"
            cure = (
                f"a firewall or security group is in between: allow TCP ports {ports or 'from 1024 up'} among the "
                "nodes of a job"
            )
            found.append(Finding("ports", "error", name, what, cure))
    return found


def taken_here(numbers: Mapping[int, str] = RAY_PORTS) -> dict[int, str]:
    """Those of the ports that another program of this machine holds, with the option that avoids each."""
    found = {}
    for port, option in numbers.items():
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("", port))
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
                found[port] = option
    return found


def judge_taken(taken: Mapping[int, str], where: str) -> list[Finding]:
    """For a machine on which no cluster of ours runs yet."""
    cure = "start the head with {}=ANOTHER, or by `laurel cluster head`, which takes ports that are free"
    return [
        Finding("ports", "note", where, f"port {port} is taken by another program", cure.format(option))
        for port, option in taken.items()
    ]


def ephemeral_range(file: Path = Path("/proc/sys/net/ipv4/ip_local_port_range")) -> str:
    """Example: ``32768-60999``; "" where the system does not say."""
    try:
        return "-".join(file.read_text().split())
    except OSError:
        return ""


def _some(names: list[str], most: int = 4) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
