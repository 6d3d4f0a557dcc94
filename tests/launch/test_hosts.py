"""The fake hosts are what the other launch tests stand on: each property that those rely on, once."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from launch.hosts import REPOSITORY, FakeHosts, needs_hosts

FETCH = "import sys, urllib.request as u; print('status', u.urlopen(sys.argv[1], timeout=2).status)"


def fetch(hosts, source, target):
    return hosts.exec(source, ["python", "-c", FETCH, f"http://{target}:8000/LICENSE"], timeout=20).output


@pytest.mark.hosts(
    ["head", "gpu-b7"], docker0=["gpu-b7"], name_is_loopback=["gpu-b7"], shm={"head": 1 << 26, "gpu-b7": 1 << 30}
)
def test_each_host_has_what_a_node_has_of_its_own(hosts):
    look = (
        "import json, os, pwd, socket; s = socket.socket(type=socket.SOCK_DGRAM); s.connect(('192.0.2.1', 9));"
        "v = os.statvfs('/dev/shm');"
        "print(json.dumps([socket.gethostname(), s.getsockname()[0], socket.gethostbyname(socket.gethostname()),"
        "[n for _, n in socket.if_nameindex()], sorted(os.listdir('/sys/class/net')), v.f_blocks * v.f_frsize,"
        "os.path.expanduser('~'), pwd.getpwuid(0).pw_dir]))"
    )
    seen = {name: json.loads(hosts.exec(name, ["python", "-c", look], check=True).output) for name in hosts.names}
    home = str(hosts.home("head"))
    head, b7 = hosts.addresses["head"], hosts.addresses["gpu-b7"]
    assert seen["head"] == ["head", head, head, ["lo", "eth0"], ["eth0", "lo"], 1 << 26, home, home]
    names = ["lo", "docker0", "eth0"]
    assert seen["gpu-b7"] == ["gpu-b7", b7, "127.0.1.1", names, sorted(names), 1 << 30, home, home]


def test_a_cable_can_be_cut_and_a_plug_pulled(hosts):
    server = ["python", "-m", "http.server", "8000"]
    first = hosts.popen("node2", server)
    first.wait_for("Serving", 20)
    assert fetch(hosts, "node1", "node2") == "status 200\n"
    hosts.cut("node2")
    assert "timed out" in fetch(hosts, "node1", "node2")
    assert first.poll() is None
    hosts.uncut("node2")
    assert fetch(hosts, "node1", "node2") == "status 200\n"
    assert list(hosts.processes("node2").values()) == ["python -m http.server 8000"]
    hosts.kill("node2")
    assert first.wait(5) == -signal.SIGKILL
    hosts.start("node2")
    assert hosts.processes("node2") == {}
    second = hosts.popen("node2", server)
    second.wait_for("Serving", 20)
    assert fetch(hosts, "node1", hosts.address("node2")) == "status 200\n"
    assert second.end() == -signal.SIGTERM


def test_what_lies_outside_is_refused_at_once_and_disks_are_apart_where_they_should_be(hosts):
    started = time.monotonic()
    connect = "import socket; socket.create_connection((socket.gethostbyname('example.invalid'), 80), 20)"
    assert "gaierror" in hosts.exec("node1", ["python", "-c", connect]).output
    assert "No route to host" in hosts.exec("node1", ["python", "-c", FETCH, "http://192.0.2.1/"]).output
    assert time.monotonic() - started < 10
    for path in ("/mnt/x", "/tmp/ray/x", "/dev/shm/x"):
        hosts.exec("node1", ["touch", path], check=True)
        assert hosts.exec("node2", ["test", "-e", path]).code == 1
    assert (hosts.local("node1") / "x").exists()
    assert (hosts.ray_folder("node1") / "x").exists()


def test_a_command_past_its_deadline_is_killed_and_shown(hosts):
    with pytest.raises(AssertionError, match=r"still running on node1 after 1 s; output:\nhello"):
        hosts.exec("node1", ["sh", "-c", "echo hello; sleep 60; echo never"], timeout=1)
    assert hosts.processes("node1") == {}


def test_hosts_end_with_the_process_that_made_them():
    if reason := needs_hosts():
        pytest.skip(reason)
    code = (
        "import sys, time; sys.path.insert(0, 'tests'); from launch.hosts import FakeHosts\n"
        "hosts = FakeHosts(2).__enter__(); process = hosts.popen('node1', ['sleep', '600'])\n"
        "print(hosts.folder, process.pid, flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code], cwd=REPOSITORY, stdout=subprocess.PIPE, text=True) as maker:
        folder, pid = maker.stdout.readline().split()
        process = Path(f"/proc/{pid}")
        assert process.exists()
        maker.kill()
    deadline = time.monotonic() + 10
    while process.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not process.exists()
    subprocess.run(["rm", "-rf", folder], check=True)


def test_two_sets_do_not_meet(hosts):
    with FakeHosts(2) as others:
        assert others.folder != hosts.folder
        others.popen("node1", ["python", "-m", "http.server", "8000", "--bind", "0.0.0.0"]).wait_for("Serving", 20)
        assert fetch(others, "node2", "node1") == "status 200\n"
        assert "refused" in fetch(hosts, "node2", "node1")
