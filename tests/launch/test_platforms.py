"""The platforms themselves: `laurel launch skypilot` through a real `sky launch` that makes two nodes."""

import pytest

from launch.environments import needs_programs, needs_skypilot, needs_slurm, needs_wheels
from launch.hosts import BIN, needs_hosts
from launch.skypilot import CLOUD, SkyPilot
from launch.slurm import SlurmCluster


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_sky_launch_trains_on_two_nodes_and_stop_takes_them_down(small_ppo, tmp_path):
    needed = (needs_hosts(), needs_slurm(), needs_programs("sshd", "rsync"), needs_skypilot(), needs_wheels())
    if reason := next(filter(None, needed), ""):
        pytest.skip(reason)
    with SlurmCluster(shared=["/etc/slurm", "/run/munge", "/run/sshd"]) as slurm:
        sky = SkyPilot(slurm)
        words = ["--name", "sums", "--nodes", "2", "--cpus-per-task", "2", "--memory", "4", "--infra", f"slurm/{CLOUD}"]
        words += ["--workdir", "", "--path", str(BIN), "--", *small_ppo.settings(tmp_path / "run", nodes=2)]
        done = sky.exec("laurel", "launch", "skypilot", *words, timeout=400, check=True, cwd=tmp_path)
        assert "skypilot has taken sums (sums)" in done.output
        log = "\n".join(line.partition(") ")[2] or line for line in done.output.splitlines())
        small_ppo.check(tmp_path / "run", log, nodes=2)
        status = sky.exec("laurel", "launch", "status", "sums", check=True, cwd=tmp_path).output
        assert "SUCCEEDED" in status, status
        sky.exec("laurel", "launch", "stop", "sums", timeout=120, check=True, cwd=tmp_path)
        assert slurm.login(["squeue", "--noheader", "--states=running"], check=True).output.strip() == ""
        sky.stop()
