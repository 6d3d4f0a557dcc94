"""The script of ``laurel launch slurm``, submitted to a real Slurm: two and three nodes with different addresses.

Every node has a device docker0 with one address everywhere before its own, and the nodes' names follow no pattern.
"""

import re
from pathlib import Path

import pytest

from launch.environments import needs_slurm
from launch.hosts import needs_hosts
from launch.slurm import SlurmCluster

NODES = ["node1", "gpu-b7", "x3c0s9"]


@pytest.fixture(scope="module")
def slurm():
    if reason := needs_hosts() or needs_slurm():
        pytest.skip(reason)
    with SlurmCluster(NODES, cpus=8, gpus=2, docker0=True) as cluster:
        yield cluster


def render(slurm: SlurmCluster, folder: Path, settings: list[str], *options: str, nodes: int) -> Path:
    """The script that ``--dry-run`` prints, in a file."""
    folder.mkdir(parents=True, exist_ok=True)
    words = ["--nodes", str(nodes), "--gpus-per-node", "1", "--cpus-per-task", "2", *options, "--dry-run"]
    done = slurm.login(["laurel", "launch", "slurm", *words, "--", *settings], cwd=folder, check=True)
    script = folder / "job.sbatch"
    script.write_text(done.output[done.output.index("#!") :])
    return script


@pytest.mark.timeout(400)
@pytest.mark.parametrize("nodes", [pytest.param(2, marks=pytest.mark.slow), 3])
def test_the_rendered_script_trains_on_every_node(slurm, small_ppo, tmp_path, nodes):
    results = tmp_path / "run"
    job = slurm.submit(render(slurm, tmp_path, small_ppo.settings(results, nodes=nodes), nodes=nodes))
    assert slurm.wait(job, 300) == "COMPLETED", slurm.output(job)
    small_ppo.check(results, slurm.output(job), nodes=nodes)
    used = slurm.login(["scontrol", "show", "hostnames", slurm.job(job)["NodeList"]], check=True).output.split()
    ran = set(re.findall(r"node (\S+): rank \d", slurm.output(job)))
    assert ran == {slurm.hosts.address(name) for name in used}
    assert slurm.left_behind() == {}


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_two_jobs_of_one_user_on_the_same_nodes_do_not_meet(slurm, small_ppo, tmp_path):
    on_both = f"--nodelist={NODES[0]},{NODES[1]}"
    jobs = {}
    for name in ("one", "two"):
        settings = small_ppo.settings(tmp_path / name / "run", nodes=2, steps=3)
        jobs[name] = slurm.submit(render(slurm, tmp_path / name, settings, nodes=2), on_both)
    for name, job in jobs.items():
        assert slurm.wait(job, 300) == "COMPLETED", slurm.output(job)
        small_ppo.check(tmp_path / name / "run", slurm.output(job), nodes=2, steps=3)
    one, two = (slurm.job(job) for job in jobs.values())
    assert one["NodeList"] == two["NodeList"]
    assert two["StartTime"] < one["EndTime"], "they ran at the same time"
    addresses = [re.search(r"Joined Ray \S+ at (\S+)", slurm.output(job))[1] for job in jobs.values()]
    assert addresses[0] != addresses[1]
    assert slurm.left_behind() == {}


@pytest.mark.timeout(300)
def test_laurel_launch_submits_tells_and_stops_and_leaves_nothing_behind(slurm, small_ppo, tmp_path):
    settings = small_ppo.settings(tmp_path / "run", nodes=2, steps=100_000)
    words = ["--name", "sums", "--nodes", "2", "--gpus-per-node", "1", "--cpus-per-task", "2", "--detach"]
    done = slurm.login(["laurel", "launch", "slurm", *words, "--", *settings], cwd=tmp_path, check=True)
    job = int(re.search(r"slurm has taken sums \((\d+)\)", done.output)[1])
    followed = slurm.hosts.popen("ctl", ["laurel", "launch", "logs", "sums", "--follow"])
    followed.wait_for("step 2 ", 200)
    state = slurm.login(["laurel", "launch", "status", "sums"], check=True).output
    assert state.startswith("RUNNING on "), state
    assert f"sums  slurm {job} " in slurm.login(["laurel", "launch", "status"], check=True).output
    slurm.login(["laurel", "launch", "stop", "sums"], check=True)
    assert slurm.wait(job, 60) == "CANCELLED"
    assert slurm.left_behind(30) == {}
    assert followed.wait(30) == 1, "a job that did not end well"
    assert "step 2 " in slurm.login(["laurel", "launch", "logs", "sums"], check=True).output
    assert slurm.login(["laurel", "launch", "status", "sums"], check=True).output.startswith("CANCELLED")


@pytest.mark.timeout(400)
def test_usr1_saves_and_a_requeued_job_goes_on(slurm, small_ppo, tmp_path):
    settings = small_ppo.settings(tmp_path / "run", nodes=2, steps=100_000)
    job = slurm.submit(render(slurm, tmp_path, settings, nodes=2), "--requeue")
    slurm.wait_for(job, "step 2 ", 200)
    slurm.login(["scancel", "--signal=USR1", "--batch", str(job)], check=True)
    slurm.wait_for(job, "stopped early by SIGUSR1", 60)
    assert slurm.wait(job, 60) == "FAILED"
    assert slurm.job(job)["ExitCode"] == "75:0", "ended early, saved"
    slurm.login(["scontrol", "requeue", str(job)], check=True)
    slurm.start_again(job, 90)
    slurm.wait_for(job, "resumed at step", 200)
    slurm.login(["scancel", str(job)], check=True)
    assert slurm.wait(job, 60) == "CANCELLED"
    assert slurm.left_behind(30) == {}


@pytest.mark.timeout(200)
def test_a_run_that_fails_fails_the_job(slurm, small_ppo, tmp_path):
    """The data are looked for when the job runs: here they are gone by then."""
    train = tmp_path / "train.parquet"
    train.write_bytes((small_ppo.folder / "train.parquet").read_bytes())
    settings = [*small_ppo.settings(tmp_path / "run", nodes=2), f"data.train_files={train}"]
    script = render(slurm, tmp_path, settings, nodes=2)
    train.unlink()
    job = slurm.submit(script)
    assert slurm.wait(job, 150) == "FAILED", slurm.output(job)
    assert slurm.job(job)["ExitCode"] == "2:0", "the training's own exit code: wrong settings"
    assert str(train) in slurm.output(job)
    assert slurm.left_behind() == {}


# Stands in for apptainer, for which Debian has no package: it takes the command out of the words and runs it, without
# any container. So this shows that the words are in order and that the job works through them, no more.
APPTAINER = """#!/bin/bash
printf '%s\\n' "$(hostname): $*" >> {record}
[ "$1" = exec ] || { echo "apptainer: only exec is known here" >&2; exit 64; }
shift
while [[ "$1" == -* ]]; do
    case "$1" in --bind|-B|--env|--pwd|--env-file) shift 2;; *) shift;; esac
done
shift
exec "$@"
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_apptainer_form_runs_through_a_stand_in(slurm, small_ppo, tmp_path):
    results, record, tools = tmp_path / "run", tmp_path / "record", tmp_path / "bin"
    tools.mkdir()
    (tools / "apptainer").write_text(APPTAINER.replace("{record}", str(record)))
    (tools / "apptainer").chmod(0o755)
    image = tmp_path / "laurel.sif"
    image.touch()
    script = render(slurm, tmp_path, small_ppo.settings(results, nodes=2), "--apptainer", str(image), nodes=2)
    path = f"{tools}:{slurm.hosts.environment('ctl')['PATH']}"
    job = slurm.submit(script, env={"PATH": path})
    assert slurm.wait(job, 250) == "COMPLETED", slurm.output(job)
    small_ppo.check(results, slurm.output(job), nodes=2)
    started = record.read_text().splitlines()
    assert len(started) == 2, "once on each node"
    for line in started:
        words = line.partition(": ")[2].split()
        assert words[0] == "exec"
        assert str(image) in words
        assert words[words.index(str(image)) + 1 :][:3] == ["laurel", "cluster", "run"]
    assert slurm.left_behind() == {}
