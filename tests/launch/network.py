"""The network of fake hosts: one switch with a cable to each, in a namespace of its own."""

from __future__ import annotations

import os
import subprocess
import time

_START_S = 20.0


class Switch:
    """A bridge that is also the hosts' gateway, and answers for it that nothing lies beyond.

    ``network`` is the first three numbers of the addresses, as "10.77.5". It is gone with its process, which ends when
    the one that made it does.
    """

    def __init__(self, network: str):
        self._network = network
        self._cables: dict[str, str] = {}
        self._plugged = 0
        self._process = subprocess.Popen(["unshare", "--net", "cat"], stdin=subprocess.PIPE, start_new_session=True)
        try:
            self._wait_for_namespace()
            self._set_up()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        assert self._process.stdin is not None
        self._process.stdin.close()

    def plug_in(self, host: str, address: str, pid: int, *, docker0: bool) -> None:
        """Give the network namespace of a process its devices: lo, perhaps docker0, and eth0 with a cable to us."""
        self.unplug(host)
        self._plugged += 1
        port = self._cables[host] = f"p{self._plugged}"  # a new name: that of a killed host may vanish a little later
        # The others remember the hardware address for a while, so it stays the same when a host starts again.
        mac = f"02:4c:{':'.join(f'{int(part):02x}' for part in address.split('.'))}"
        first = ["link set lo up"]
        if docker0:
            first += ["link add docker0 type bridge", "addr add 172.17.0.1/16 dev docker0", "link set docker0 up"]
        ip(pid, first)
        ip(
            self._process.pid,
            [
                f"link add {port} type veth peer name eth0 address {mac} netns {pid}",
                f"link set {port} master br0",
                f"link set {port} up",
            ],
        )
        ip(
            pid,
            [
                f"addr add {address}/24 broadcast + dev eth0",
                "link set eth0 up",
                f"route add default via {self._network}.254",
            ],
        )

    def unplug(self, host: str) -> None:
        """Take a cable away, if the kernel has not done so with the end of its host."""
        if port := self._cables.pop(host, None):
            ip(self._process.pid, [f"link del {port}"], check=False)

    def cut(self, host: str) -> None:
        ip(self._process.pid, [f"link set {self._cables[host]} down"])

    def uncut(self, host: str) -> None:
        ip(self._process.pid, [f"link set {self._cables[host]} up"])

    def _wait_for_namespace(self) -> None:
        deadline = time.monotonic() + _START_S
        while os.readlink(f"/proc/{self._process.pid}/ns/net") == os.readlink("/proc/self/ns/net"):
            assert self._process.poll() is None, "the switch did not start"
            assert time.monotonic() < deadline, f"the switch did not start in {_START_S} s"
            time.sleep(0.005)

    def _set_up(self) -> None:
        ip(
            self._process.pid,
            [
                "link set lo up",
                "link add br0 type bridge",
                f"addr add {self._network}.254/24 dev br0",
                "link set br0 up",
                "route add unreachable default",
            ],
        )
        # Without forwarding the gateway would drop packets silently, and a look outside would hang instead of fail.
        forward = ["nsenter", f"--target={self._process.pid}", "--net", "sh", "-c"]
        subprocess.run([*forward, "echo 1 > /proc/sys/net/ipv4/ip_forward"], check=True, timeout=20)


def ip(pid: int, commands: list[str], *, check: bool = True) -> None:
    """``ip`` commands in the network namespace of a process."""
    done = subprocess.run(
        ["nsenter", f"--target={pid}", "--net", "ip", "-batch", "-"],
        input="\n".join(commands) + "\n",
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    if check and done.returncode != 0:
        raise RuntimeError(f"ip failed on {commands}: {done.stderr.strip()}")
