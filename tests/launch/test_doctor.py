"""`laurel doctor` on two hosts with a hand-started cluster: a healthy pair, and one with a fault of each kind."""

import json
import re
import secrets
import time

import pytest

LONGEST_S = 60


def start_cluster(hosts):
    """With a token, as docs/multinode.md advises."""
    file = hosts.home("node1") / ".laurel-ray-token"
    file.touch(mode=0o600)
    file.write_text(secrets.token_hex(32))
    hosts.env |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(file)}
    store = ["--num-cpus=2", "--object-store-memory=80000000"]
    hosts.exec("node1", ["ray", "start", "--head", "--include-dashboard=false", *store], check=True)
    address = f"{hosts.address('node1')}:6379"
    hosts.exec("node2", ["ray", "start", f"--address={address}", *store], check=True)
    return address


def visit(hosts, words):
    """Exit code and what it said; within a minute."""
    start = time.monotonic()
    done = hosts.exec("node1", ["laurel", "doctor", *words], timeout=LONGEST_S)
    return done.code, done.output, time.monotonic() - start


def named(report, topic, severity):
    return [one for one in report["findings"] if (one["topic"], one["severity"]) == (topic, severity)]


@pytest.mark.timeout(180)
@pytest.mark.hosts(2, docker0=True, name_is_loopback=["node2"])
def test_a_healthy_pair(hosts, small_ppo, tmp_path):
    address = start_cluster(hosts)
    run = tmp_path / "run"
    code, output, seconds = visit(hosts, ["--address", address, *small_ppo.settings(run, nodes=2)])
    assert code == 0, output
    assert seconds < LONGEST_S
    for name in hosts.names:
        assert f"node {hosts.address(name)} ({name}): python 3." in output
    assert "data.train_files: 64 rows, 64 used" in output
    assert re.search(r"all-reduce of 8 MiB over 2 nodes \(2 ranks, gloo on eth0\): \d+ ms, \d+\.\d GB/s", output), (
        output
    )
    # What would have led gloo astray, had Laurel not chosen
    assert "its host name resolves to 127.0.1.1 and its first interface is docker0" in output
    assert "errors:" not in output
    assert f"2 nodes at {address}, looked at in" in output
    assert not run.exists(), "the doctor left something behind"

    # With the choice that a user got wrong: the bridge, which has the same address on both
    done = hosts.exec("node1", ["laurel", "doctor", "--json"], env={"GLOO_SOCKET_IFNAME": "docker0"}, timeout=LONGEST_S)
    assert done.code == 1, done.output
    report = json.loads(done.output[done.output.index("{\n") :])
    (hung,) = named(report, "bandwidth", "error")
    assert "an all-reduce by gloo over docker0 on node" in hung["what"]
    assert "set GLOO_SOCKET_IFNAME to an interface by which all nodes reach each other" in hung["cure"]
    assert {one["cure"] for one in named(report, "network", "warning")} == {
        "set GLOO_SOCKET_IFNAME=eth0 unless it is meant"
    }


@pytest.mark.timeout(240)
@pytest.mark.hosts(2, shm={"node1": 1 << 30, "node2": 160 << 20})
def test_a_broken_pair_is_told_all_at_once_and_its_job_ends_before_a_model_is_loaded(hosts, small_ppo, tmp_path):
    """/mnt is each host's own disk; something fills node2's /dev/shm, where Ray's objects lie; a wrong answer pays as
    much as the right one."""
    start_cluster(hosts)
    hosts.exec("node2", ["fallocate", "-l", "140M", "/dev/shm/of-somebody"], check=True)
    settings = [*small_ppo.settings("/mnt/run", nodes=2), "reward.reward_kwargs.score=0.1"]
    code, output, seconds = visit(hosts, ["--json", *settings])
    assert code == 1, output
    assert seconds < LONGEST_S
    report = json.loads(output[output.index("{\n") :])
    assert report["ok"] is False
    node1, node2 = (f"node {hosts.address(name)} ({name})" for name in hosts.names)
    (folder,) = named(report, "checkpoints", "error")
    assert folder["where"] == node2
    assert f"trainer.default_local_dir=/mnt/run is not the folder that {node1} writes to" in folder["what"]
    assert "a disk that all nodes share" in folder["cure"]
    (shm,) = named(report, "/dev/shm", "error")
    assert shm["where"] == node2
    assert "of 160 MiB are free in /dev/shm, which is too little for Ray's objects" in shm["what"]
    assert "--shm-size" in shm["cure"]
    (reward,) = named(report, "reward", "error")
    assert "laurel/arithmetic, row 0: the gold answer '0' scores 0.1, a wrong one 0.1" in reward["what"]
    assert "reward.reward_kwargs" in reward["cure"]
    assert all(finding["cure"] for finding in report["findings"])
    assert not any((hosts.local(name) / "run").exists() for name in hosts.names)

    done = hosts.exec("node1", ["laurel", "train", *settings], timeout=90)
    assert done.code == 1, done.output
    for told in (folder, shm, reward):
        assert told["what"][:60] in done.output
        assert told["cure"] in done.output
    assert "rank 0 on cpu" not in done.output, "the run went on"
