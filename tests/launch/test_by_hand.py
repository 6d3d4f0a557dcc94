"""Option 1 of the multi-node guide as printed, on two hosts: a cluster started by hand, and jobs submitted to it."""

import re
import secrets
import time
from contextlib import contextmanager

import pytest
from e2e.seed_commands import MAIN, PAGE, joined, section, submission

from launch.hosts import FakeHosts, needs_hosts

JOBS = "http://127.0.0.1:8265"
# A stranger's request to the jobs API, which runs what it is given: status, then the body.
STRANGER = """
import sys, urllib.request as u, urllib.error
request = u.Request(sys.argv[1] + "/api/jobs/", method=sys.argv[2], headers=dict(h.split("=") for h in sys.argv[3:]))
if sys.argv[2] == "POST":
    request.add_header("Content-Type", "application/json")
    request.data = b'{"entrypoint": "touch /mnt/stranger-was-here"}'
try:
    answer = u.urlopen(request, timeout=20)
except urllib.error.HTTPError as error:
    answer = error
print(answer.status, answer.read().decode())
"""


def printed() -> list[str]:
    """The lines of the guide's Option 1 that start with ``ray``, comments left out."""
    lines = re.search(r"```\n(.*?)\n```", joined(section(PAGE.read_text(), 1)), re.DOTALL)[1].splitlines()
    return [line.partition(" #")[0].strip() for line in lines if line.startswith("ray ")]


@contextmanager
def cluster_by_hand(nodes: int, *, token: bool):
    """Hosts on which the first two lines of the guide were typed."""
    if reason := needs_hosts():
        pytest.skip(reason)
    with FakeHosts(nodes, shm=8 << 30) as hosts:
        if token:
            file = hosts.home("node1") / ".laurel-ray-token"
            file.touch(mode=0o600)
            file.write_text(secrets.token_hex(32))
            hosts.env |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(file)}
        head, join, *_ = printed()
        said = ray(hosts, head)
        address = re.search(r"--address='(\S+:6379)'", said)[1]
        assert address == f"{hosts.address('node1')}:6379", said
        for node in hosts.names[1:]:
            ray(hosts, join.replace("<head-node-ip>:6379", address), host=node)
        yield hosts


def ray(hosts: FakeHosts, line: str, *, host: str = "node1", timeout: float = 120) -> str:
    """A line as one types it into that host's shell; its output."""
    done = hosts.exec(host, ["bash", "-c", line], timeout=timeout)
    assert done.code == 0, f"{line} ended with {done.code} on {host}:\n{done.output}"
    return done.output


def submit(hosts: FakeHosts, words: list[str]) -> str:
    """The guide's ``ray job submit`` with these settings; the job's id."""
    line = " ".join(["ray", *submission(PAGE.read_text()), "--", *MAIN.split(), *words])
    return re.search(r"raysubmit_\w+", ray(hosts, line))[0]


@pytest.fixture(scope="module")
def cluster():
    """With a token, as docs/multinode.md advises: the same file on every node."""
    with cluster_by_hand(2, token=True) as hosts:
        yield hosts


def test_the_lines_are_those_of_the_guide():
    head, join, status, job, more = printed()
    assert head == "ray start --head --dashboard-host=0.0.0.0"
    assert join == "ray start --address='<head-node-ip>:6379'"
    assert status == "ray status"
    assert job.startswith(f'ray job submit --address="{JOBS}" --runtime-env=laurel/trainer/runtime_env.yaml --no-wait')
    assert more == "ray job list | ray job logs <id> --follow | ray job status <id> | ray job stop <id>"


def test_ray_status_shows_every_node(cluster):
    deadline = time.monotonic() + 60  # it shows what was last reported, some seconds ago
    while len(active_nodes(said := ray(cluster, "ray status"))) < 2:
        assert time.monotonic() < deadline, said
        time.sleep(1)
    assert re.search(r"\d/\d+\.0 CPU", said), said


def active_nodes(status: str) -> list[str]:
    return re.findall(r"^ 1 (node_\w+)$", status, re.MULTILINE)


@pytest.mark.timeout(400)
def test_a_submitted_job_trains_on_both_nodes(cluster, small_ppo, tmp_path):
    job = submit(cluster, small_ppo.settings(tmp_path / "run", nodes=2))
    assert job in ray(cluster, "ray job list")
    log = ray(cluster, f"ray job logs {job} --follow", timeout=240)
    assert f"Job '{job}' succeeded" in ray(cluster, f"ray job status {job}"), log
    small_ppo.check(tmp_path / "run", log, nodes=2)
    assert set(re.findall(r"node (\S+): rank \d", log)) == set(cluster.addresses.values())


@pytest.mark.timeout(400)
def test_laurel_launch_ray_submits_and_follows(cluster, small_ppo, tmp_path):
    """Without an upload: the nodes have Laurel. The token is in no file and no word of a command."""
    settings = " ".join(small_ppo.settings(tmp_path / "run", nodes=2))
    log = ray(cluster, f"laurel launch ray --name sums --nodes 2 -- {settings}", timeout=240)
    assert "ray has taken sums (sums)" in log
    small_ppo.check(tmp_path / "run", log, nodes=2)
    assert "SUCCEEDED" in ray(cluster, "laurel launch status sums").upper()
    again = cluster.exec("node1", ["bash", "-c", f"laurel launch ray --name sums --nodes 2 -- {settings}"])
    assert again.code == 1
    assert "sums" in again.output
    jobs = cluster.home("node1") / ".laurel" / "jobs"
    token = (cluster.home("node1") / ".laurel-ray-token").read_text()
    assert all(token not in file.read_text() for file in jobs.iterdir())


@pytest.mark.timeout(400)
def test_a_stopped_job_leaves_no_rank_behind(cluster, small_ppo, tmp_path):
    job = submit(cluster, small_ppo.settings(tmp_path / "run", nodes=2, steps=100_000))
    deadline = time.monotonic() + 200
    while "step 1" not in (log := ray(cluster, f"ray job logs {job}")):
        assert time.monotonic() < deadline, log
        time.sleep(1)
    assert "RUNNING" in ray(cluster, f"ray job status {job}")
    assert ranks(cluster) != {"node1": [], "node2": []}
    ray(cluster, f"ray job stop {job}")
    assert "STOPPED" in ray(cluster, f"ray job list | grep {job}")
    deadline = time.monotonic() + 60
    while ranks(cluster) != {"node1": [], "node2": []}:
        assert time.monotonic() < deadline, ranks(cluster)
        time.sleep(0.5)
    assert len(active_nodes(ray(cluster, "ray status"))) == 2, "the cluster stays"


def ranks(hosts: FakeHosts) -> dict[str, list[str]]:
    """Driver and actors of runs, by host."""
    of_run = re.compile(rf"ray::(?!IDLE|DashboardAgent|RuntimeEnvAgent)|.*{re.escape(MAIN.partition(' ')[2])}")
    return {name: list(filter(of_run.match, hosts.processes(name).values())) for name in hosts.names}


def test_a_stranger_cannot_run_anything_on_a_cluster_with_a_token(cluster):
    jobs = f"http://{cluster.address('node1')}:8265"
    stranger = {"RAY_AUTH_MODE": "disabled", "RAY_AUTH_TOKEN_PATH": ""}
    for method in ("GET", "POST"):
        assert request(cluster, jobs, method, env=stranger).startswith("401 ")
    assert request(cluster, jobs, "GET", "Authorization=Bearer 123", env=stranger).startswith("403 ")
    done = cluster.exec("node2", ["ray", "job", "submit", f"--address={jobs}", "--", "id"], env=stranger)
    assert done.code != 0
    assert "uid=0" not in done.output
    token = (cluster.home("node1") / ".laurel-ray-token").read_text()
    assert request(cluster, jobs, "GET", f"Authorization=Bearer {token}", env=stranger).startswith("200 ")
    assert not (cluster.local("node1") / "stranger-was-here").exists()


def request(hosts: FakeHosts, url: str, method: str, *headers: str, env: dict[str, str] | None = None) -> str:
    return hosts.exec("node2", ["python", "-c", STRANGER, url, method, *headers], env=env, check=True).output


@pytest.mark.timeout(400)
def test_a_cluster_without_a_token_is_warned_about_and_used(small_ppo, tmp_path):
    """Whoever started it by hand decides; the run says what it means, once."""
    with cluster_by_hand(1, token=False) as hosts:
        job = submit(hosts, small_ppo.settings(tmp_path / "run", nodes=1))
        log = ray(hosts, f"ray job logs {job} --follow", timeout=240)
        small_ppo.check(tmp_path / "run", log, nodes=1)
    warnings = [line for line in log.splitlines() if "RAY_AUTH_MODE=token" in line]
    assert len(warnings) == 1, log
