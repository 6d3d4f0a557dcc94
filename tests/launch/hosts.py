"""Several hosts on this machine: real kernels' namespaces, so that what runs in them meets what a cluster's node meets.

A host has its own network device and address, hostname, processes, /dev/shm, /tmp/ray and /mnt (node-local disk); the
disk, else, is shared as a network file system would be. All hang on one switch, which lies in a namespace of its own:
nothing of this machine's network is touched, and two sets of hosts cannot meet. Everything lives as long as the
process that made it: each host's PID 1 ends when a pipe to its starter closes, and takes all its processes along.

    with FakeHosts(2) as hosts:
        hosts.exec("node2", ["ping", "-c1", hosts.address("node1")])
"""

from __future__ import annotations

import functools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from launch.host_process import Done, HostProcess, child_of
from launch.network import Switch

REPOSITORY = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
# What a session of the machine's owner brings and a fresh login on a node would not have.
_NOT_INHERITED = ("RAY_", "LAUREL_", "SLURM_", "SKYPILOT_", "DSTACK_", "VIRTUAL_ENV", "PYTHONDONTWRITEBYTECODE")


@functools.cache
def needs_hosts() -> str:
    """Why fake hosts cannot be made here; empty if they can."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "fake hosts need Linux and root (for network namespaces)"
    missing = [name for name in ("unshare", "nsenter", "ip", "mount") if shutil.which(name) is None]
    if missing:
        return f"fake hosts need {', '.join(missing)} (Debian: apt-get install iproute2 util-linux mount)"
    words = ["unshare", "--net", "--uts", "--ipc", "--pid", "--mount", "--fork", "mount", "-t", "proc", "proc", "/proc"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=20, check=False)
    return "" if done.returncode == 0 else f"this machine allows no namespaces: {done.stderr.strip()}"


@dataclass
class _Host:
    """``init`` is PID 1 as this machine counts; None while the host is down."""

    name: str
    address: str
    state: Path
    unshare: subprocess.Popen[bytes] | None = None
    init: int | None = None


class FakeHosts:
    """Makes the hosts on entry and ends them, and all that runs in them, on exit."""

    def __init__(
        self,
        hosts: int | Sequence[str],
        *,
        shm: int | Mapping[str, int] = 1 << 30,
        binds: Mapping[str, str | Path] | None = None,
        shared: Sequence[str] = (),
        own_homes: bool = False,
        name_is_loopback: Sequence[str] = (),
        docker0: bool | Sequence[str] = False,
        env: Mapping[str, str] | None = None,
    ):
        """``hosts``: names, or a number N for node1 ... nodeN.

        shm: bytes of /dev/shm, for all or by host. binds: {path in every host: source on this machine}.
        shared: folders, such as /etc/slurm, which are new and empty, and the same in all hosts (``hosts.common``).
        own_homes: each host's root has a home folder of its own, instead of one shared by all; never the machine's.
        name_is_loopback: hosts whose own name is 127.0.1.1 in their /etc/hosts, as Debian's installer writes it.
        docker0: hosts (True: all) that have a device docker0 with 172.17.0.1, the same everywhere, before eth0.
        env: further variables of every command.
        """
        self.names = [f"node{number + 1}" for number in range(hosts)] if isinstance(hosts, int) else list(hosts)
        self.network = f"10.77.{random.SystemRandom().randrange(1, 255)}"
        self._shm = shm if isinstance(shm, Mapping) else dict.fromkeys(self.names, shm)
        self._binds = {target: str(source) for target, source in (binds or {}).items()}
        self._shared = list(shared)
        self._own_homes = own_homes
        self._name_is_loopback = set(name_is_loopback)
        self._docker0 = set(self.names if docker0 is True else docker0 or ())
        self.env = dict(env or {})
        self._switch: Switch | None = None
        self._hosts: dict[str, _Host] = {}
        self._logs = 0

    def __enter__(self) -> FakeHosts:
        self.folder = Path(tempfile.mkdtemp(prefix="fh-", dir="/tmp"))  # short: sockets lie below it
        try:
            self._switch = Switch(self.network)
            for number, name in enumerate(self.names):
                self._hosts[name] = _Host(name, f"{self.network}.{11 + number}", self.folder / name)
            for name in self.names:
                self.start(name)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def addresses(self) -> dict[str, str]:
        return {name: host.address for name, host in self._hosts.items()}

    def address(self, name: str) -> str:
        return self._hosts[name].address

    def home(self, name: str) -> Path:
        """Root's home folder on that host (the same path and folder on all, unless own_homes)."""
        return self.folder / name / "home" if self._own_homes else self.folder / "home"

    def common(self, target: str) -> Path:
        """What all hosts see as ``target``, one of ``shared``."""
        return self.folder / "shared" / target.strip("/").replace("/", "-")

    def local(self, name: str) -> Path:
        """What that host sees as /mnt, its node-local disk."""
        return self._hosts[name].state / "local"

    def ray_folder(self, name: str) -> Path:
        """What that host sees as /tmp/ray."""
        return self._hosts[name].state / "ray"

    def environment(self, name: str, env: Mapping[str, str] | None = None) -> dict[str, str]:
        """The variables of a command on that host: a fresh login's, this repository's Python first on PATH."""
        mine = {key: value for key, value in os.environ.items() if not key.startswith(_NOT_INHERITED)}
        mine |= {"HOME": str(self.home(name)), "PATH": f"{BIN}:{os.environ['PATH']}", "HOSTNAME": name}
        mine |= {"PYTHONUNBUFFERED": "1", "RAY_USAGE_STATS_ENABLED": "0"}
        return mine | self.env | dict(env or {})

    def exec(
        self,
        name: str,
        command: Sequence[str | Path],
        *,
        timeout: float = 60,
        env: Mapping[str, str] | None = None,
        cwd: str | Path = REPOSITORY,
        check: bool = False,
    ) -> Done:
        """Run a command to its end. ``check``: an AssertionError with its output if it fails.

        At the deadline it is killed and an AssertionError shows what it had said. What it left running as a daemon
        stays, as on a real host, until the host ends.
        """
        process = self.popen(name, command, env=env, cwd=cwd)
        try:
            code = process.wait(timeout)
        except BaseException:
            process.kill()
            raise
        output = process.output
        process.log.unlink(missing_ok=True)
        if check and code != 0:
            shown = " ".join(str(word) for word in command)
            raise AssertionError(f"{shown} ended with {code} on {name}; output:\n{output}")
        return Done(code, output)

    def popen(
        self,
        name: str,
        command: Sequence[str | Path],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | Path = REPOSITORY,
    ) -> HostProcess:
        """Start a command in a session of its own, its output in a file."""
        host = self._hosts[name]
        assert host.init is not None, f"host {name} is down"
        self._logs += 1
        log = self.folder / f"{name}-{self._logs}.log"
        words = ["nsenter", f"--target={host.init}", "--net", "--uts", "--ipc", "--pid", "--mount", f"--wd={cwd}", "--"]
        with log.open("wb") as file:
            enter = subprocess.Popen(
                [*words, *map(str, command)],
                env=self.environment(name, env),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return HostProcess(name, child_of(enter) or enter.pid, log, enter)

    def processes(self, name: str) -> dict[int, str]:
        """Command lines by pid (as this machine counts) of what runs on that host, its PID 1 left out."""
        host = self._hosts[name]
        if host.init is None:
            return {}
        space = os.readlink(f"/proc/{host.init}/ns/pid")
        found = {}
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if int(folder.name) != host.init and os.readlink(folder / "ns/pid") == space:
                    words = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
                    if words:  # a zombie has none
                        found[int(folder.name)] = words
            except OSError:  # it ended while we looked
                continue
        return found

    def kill(self, name: str) -> None:
        """Pull the plug: every process of the host is gone at once, its cable too. ``start`` brings it up again."""
        host = self._hosts[name]
        if host.init is not None:
            _kill(host.init)
        if host.unshare is not None:
            host.unshare.wait(10)
            _close(host.unshare)
        host.unshare, host.init = None, None
        if self._switch is not None:
            self._switch.unplug(name)

    def cut(self, name: str) -> None:
        """Cut the cable: the host goes on, and no packet passes."""
        self._cables.cut(name)

    def uncut(self, name: str) -> None:
        self._cables.uncut(name)

    def start(self, name: str) -> None:
        """Start a host that is down."""
        host = self._hosts[name]
        assert host.init is None, f"host {name} is up"
        plan = {"name": name, "state": str(host.state), "shm_bytes": self._shm[name], "binds": self._plan_binds(host)}
        words = ["unshare", "--net", "--uts", "--ipc", "--pid", "--mount", "--fork", "--kill-child"]
        errors = host.state / "init.log"
        with errors.open("wb") as log:
            host.unshare = subprocess.Popen(
                [*words, sys.executable, "-I", str(Path(__file__).with_name("host_init.py")), json.dumps(plan)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        assert host.unshare.stdout is not None
        ready = host.unshare.stdout.readline()
        host.init = child_of(host.unshare)
        if ready != b"ready\n" or host.init is None:
            raise RuntimeError(f"host {name} did not start:\n{errors.read_text()}")
        self._cables.plug_in(name, host.address, host.init, docker0=name in self._docker0)

    def close(self) -> None:
        """End everything; also what a failed start left."""
        for name in self._hosts:
            self.kill(name)
        if self._switch is not None:
            self._switch.close()
            self._switch = None
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def _cables(self) -> Switch:
        assert self._switch is not None, "the hosts are closed"
        return self._switch

    def _plan_binds(self, host: _Host) -> list[tuple[str, str]]:
        """Folders and files that only this host sees, written anew at each start (its disk stays)."""
        for folder in ("ray", "local", "etc"):
            (host.state / folder).mkdir(parents=True, exist_ok=True)
        self.home(host.name).mkdir(exist_ok=True)
        etc = host.state / "etc"
        (etc / "hostname").write_text(f"{host.name}\n")
        (etc / "hosts").write_text(self._hosts_file(host))
        # Nobody answers, at once: a look-up that goes beyond /etc/hosts would else take ten seconds.
        (etc / "resolv.conf").write_text("nameserver 127.0.0.1\n")
        (etc / "passwd").write_text(self._passwd(host))
        binds = {
            "/tmp/ray": str(host.state / "ray"),
            "/mnt": str(host.state / "local"),
            "/etc/hosts": str(etc / "hosts"),
            "/etc/hostname": str(etc / "hostname"),
            "/etc/resolv.conf": str(etc / "resolv.conf"),
            "/etc/passwd": str(etc / "passwd"),
        } | self._binds
        for target in self._shared:
            self.common(target).mkdir(parents=True, exist_ok=True)
            binds[target] = str(self.common(target))
        return sorted(((source, target) for target, source in binds.items()), key=lambda pair: len(pair[1]))

    def _hosts_file(self, host: _Host) -> str:
        lines = ["127.0.0.1 localhost"]
        for other in self._hosts.values():
            loopback = other is host and host.name in self._name_is_loopback
            lines.append(f"{'127.0.1.1' if loopback else other.address} {other.name}")
        return "\n".join(lines) + "\n"

    def _passwd(self, host: _Host) -> str:
        """The machine's, but root's home: programs that ask for it must not write into the real one."""
        lines = []
        for line in Path("/etc/passwd").read_text().splitlines():
            parts = line.split(":")
            if parts[0] == "root":
                parts[5] = str(self.home(host.name))
            lines.append(":".join(parts))
        return "\n".join(lines) + "\n"


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _close(process: subprocess.Popen[bytes]) -> None:
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()
