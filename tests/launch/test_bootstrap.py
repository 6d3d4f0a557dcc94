"""`laurel cluster run` on hosts of their own: that it trains, and the words in which each fault ends."""

import re
import signal
import sys
import time

import pytest

TOKEN = {"LAUREL_CLUSTER_TOKEN": "a-secret-of-this-test-" + "x" * 20}
# Holds ports of a job's first blocks, and answers as another service would.
HOLDER = """
import socket, sys, time
held = []
for port in sys.argv[1:]:
    held.append(socket.create_server(("", int(port))))
print("held", flush=True)
while True:
    connection = held[0].accept()[0]
    connection.sendall(b"220 some other service\\r\\n")
"""


def node(hosts, name, rank, settings, *options, nodes=2, head="node1", env=TOKEN, timeout=60):
    words = ["laurel", "cluster", "run", "--rank", str(rank), "--nodes", str(nodes), "--head", head]
    words += ["--join-timeout", str(timeout), *options, "--", *settings]
    return hosts.popen(name, words, env=env)


def nothing_left(hosts, *names):
    deadline = time.monotonic() + 15
    while left := {name: found for name in names if (found := hosts.processes(name))}:
        assert time.monotonic() < deadline, left
        time.sleep(0.2)


@pytest.mark.timeout(300)
@pytest.mark.hosts(2, docker0=True, name_is_loopback=["node1", "node2"])
def test_two_nodes_train_and_end_together(hosts, small_ppo, tmp_path):
    """Docker's bridge is the first interface of both, names resolve to loopback, 6379 is a stranger's, and the first
    block of ports is taken by another service."""
    from laurel.launch.cluster.ports import candidates

    first = candidates("named/laurel")[0].first
    holder = hosts.popen("node1", [sys.executable, "-c", HOLDER, str(first), "6379"])
    holder.wait_for("held", 20)
    long = tmp_path / ("long" * 20)
    long.mkdir()
    env = TOKEN | {"TMPDIR": str(long)}  # a socket below it would have a path of more than 107 bytes
    settings = small_ppo.settings(tmp_path / "run", nodes=2)
    head = hosts.address("node1")
    nodes = [node(hosts, f"node{rank + 1}", rank, settings, head=head, env=env) for rank in (0, 1)]
    assert [one.wait(200) for one in nodes] == [0, 0], nodes[0].output + nodes[1].output
    small_ppo.check(tmp_path / "run", nodes[0].output, nodes=2)
    assert f"node node2 ({hosts.address('node2')}, rank 1) joined" in nodes[0].output
    port = int(re.search(rf"Ray at {head}:(\d+)", nodes[0].output)[1])
    assert not first <= port < first + 16
    assert TOKEN["LAUREL_CLUSTER_TOKEN"] not in nodes[0].output + nodes[1].output
    holder.kill()
    nothing_left(hosts, "node1", "node2")


@pytest.mark.timeout(120)
def test_faults_before_training(hosts, small_ppo, tmp_path):
    """One head, which two nodes call in vain: one without the token, one with another Ray; and one that never calls."""
    settings = small_ppo.settings(tmp_path / "run", nodes=4)
    head = node(hosts, "node1", 0, settings, nodes=4, timeout=25)
    stranger = node(hosts, "node2", 1, settings, nodes=4, timeout=5, env={"LAUREL_CLUSTER_TOKEN": "y" * 30})
    other = tmp_path / "ray-2.59.0.dist-info"
    other.mkdir()
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: ray\nVersion: 2.59.0\n")
    older = node(hosts, "node2", 2, settings, nodes=4, env=TOKEN | {"PYTHONPATH": str(tmp_path)})
    assert older.wait(40) == 1, older.output
    assert "refused this node: ray 2.59.0 (the head has" in older.output
    assert stranger.wait(60) == 1, stranger.output
    assert "no head answered within 5 s" in stranger.output
    assert "another token" in stranger.output
    assert head.wait(90) == 1, head.output
    error = next(line for line in head.output.splitlines() if line.startswith("error: "))
    assert "1 of 4 nodes joined within 25 s (--join-timeout)" in error
    assert "rank 3 has not called: is its task running" in error
    assert "rank 2 was refused: ray 2.59.0" in error
    assert "called without knowing the token" in error
    nothing_left(hosts, "node1", "node2")


@pytest.mark.timeout(250)
def test_a_rank_that_joins_twice_a_late_one_and_min_nodes(hosts, small_ppo, tmp_path):
    """Rank 1 comes 8 s late, a second rank 1 is refused, rank 2 never comes: with --min-nodes=2 two train."""
    settings = small_ppo.settings(tmp_path / "run", nodes=3)
    head = node(hosts, "node1", 0, settings, "--min-nodes", "2", nodes=3, timeout=20)
    time.sleep(8)
    late = node(hosts, "node2", 1, settings, nodes=3)
    head.wait_for("rank 1) joined", 60)
    twice = node(hosts, "node2", 1, settings, nodes=3)
    assert twice.wait(40) == 1, twice.output
    assert "rank 1 has joined already, from node2" in twice.output
    assert [head.wait(150), late.wait(20)] == [0, 0], head.output + late.output
    assert "going on with 2 of 3 nodes, as --min-nodes=2 allows" in head.output
    assert "rank 2 has not called" in head.output
    small_ppo.check(tmp_path / "run", head.output, nodes=2)
    nothing_left(hosts, "node1", "node2")


@pytest.mark.timeout(250)
def test_a_lost_head_ends_its_nodes(hosts, small_ppo, tmp_path):
    settings = small_ppo.settings(tmp_path / "run", nodes=2, steps=100_000)
    head = node(hosts, "node1", 0, settings)
    joined = node(hosts, "node2", 1, settings)
    head.wait_for("step 2 ", 120)
    hosts.kill("node1")
    assert joined.wait(60) == 1, joined.output
    assert f"the head at {hosts.address('node1')} is gone" in joined.output
    nothing_left(hosts, "node2")


@pytest.mark.timeout(250)
def test_sigterm_saves_and_ends_everything_and_its_code_is_told(hosts, small_ppo, tmp_path):
    settings = small_ppo.settings(tmp_path / "run", nodes=2, steps=100_000)
    head = node(hosts, "node1", 0, settings)
    joined = node(hosts, "node2", 1, settings)
    head.wait_for("step 2 ", 120)
    head.send_signal(signal.SIGTERM)
    assert head.wait(40) == 75, head.output
    assert "stopped early by SIGTERM after step" in head.output
    assert (tmp_path / "run" / "LATEST").exists()
    assert joined.wait(20) == 0, joined.output
    nothing_left(hosts, "node1", "node2")


@pytest.mark.timeout(200)
def test_a_cluster_by_hand(hosts, small_ppo, tmp_path):
    """head, join and wait; a training in another shell finds the cluster and speaks with its token."""
    head = hosts.popen("node1", ["laurel", "cluster", "head"])
    address = re.search(r"laurel cluster join (\S+:\d+)", head.wait_for("Ctrl-C ends the cluster", 90))[1]
    joined = hosts.popen("node2", ["laurel", "cluster", "join", address])
    waited = hosts.exec("node1", ["laurel", "cluster", "wait", "--nodes", "2", "--timeout", "60"], timeout=90)
    assert waited.code == 0, waited.output
    assert "2 of 2 nodes are here" in waited.output
    short = hosts.exec("node1", ["laurel", "cluster", "wait", "--nodes", "3", "--timeout", "3"], timeout=60)
    assert short.code == 1
    assert "2 of 3 nodes with 0 GPUs after 3 s (--timeout)" in short.output
    settings = small_ppo.settings(tmp_path / "run", nodes=2)
    done = hosts.exec("node1", ["laurel", "train", *settings], timeout=120, check=True)
    small_ppo.check(tmp_path / "run", done.output, nodes=2)
    assert "RAY_AUTH_MODE=token" not in done.output, "no warning: the cluster asks for a token"
    head.send_signal(signal.SIGINT)
    assert [head.wait(30), joined.wait(30)] == [0, 0], head.output + joined.output
    nothing_left(hosts, "node1", "node2")
