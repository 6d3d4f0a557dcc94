"""Slurm as it is: slurmctld, a slurmd per host and munge, in fake hosts. The node ``ctl`` is where one logs in.

Times are set for tests: a dead node is noticed after 6 s instead of 300, a job is scheduled within 2 s. Cores and
memory of the nodes are claimed, not there: Slurm places jobs by the claims, and does not enforce them.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

from launch.hosts import Done, FakeHosts

LOGIN = "ctl"
ENDED = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "OUT_OF_MEMORY", "BOOT_FAIL")
_CONF = """\
ClusterName=laurel
SlurmctldHost={login}({address})
AuthType=auth/munge
CryptoType=crypto/munge
SlurmUser=root
SlurmdUser=root
StateSaveLocation={state}/state
SlurmdSpoolDir={state}/spool/%n
SlurmctldPidFile={state}/slurmctld.pid
SlurmdPidFile={state}/slurmd.%n.pid
SlurmctldLogFile={state}/slurmctld.log
SlurmdLogFile={state}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/linux
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
DefMemPerCPU=1000
MpiDefault=none
ReturnToService=2
SlurmdParameters=config_overrides
GresTypes=gpu
SchedulerParameters=sched_interval=2,batch_sched_delay=1,sched_min_interval=100000,bf_interval=2
SlurmdTimeout=6
KillWait=10
CompleteWait=0
MinJobAge=3600
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
{nodes}
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=1 PreemptMode=REQUEUE GraceTime=20
PartitionName=urgent Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=10 PreemptMode=OFF
"""


class SlurmCluster:
    """A context manager: the hosts and Slurm on them are up inside, and gone after."""

    def __init__(self, nodes: Sequence[str] = ("node1", "node2"), *, cpus: int = 8, gpus: int = 2, **hosts: object):
        """``cpus`` and ``gpus`` (stand-ins for devices) are what each node claims; ``hosts`` goes to FakeHosts."""
        self.nodes = list(nodes)
        self._cpus, self._gpus = cpus, gpus
        self._more = hosts

    def __enter__(self) -> SlurmCluster:
        more = {"shared": ["/etc/slurm", "/run/munge"]} | self._more
        self.hosts = FakeHosts([LOGIN, *self.nodes], **more).__enter__()  # type: ignore[arg-type]
        try:
            self.state_folder = self.hosts.folder / "slurm"
            self.state_folder.mkdir()
            self._configure()
            self._start_munge()
            self.login(["slurmctld"], check=True)
            for node in self.nodes:
                self.start_node(node)
            self._wait_until_up()
        except BaseException:
            self.hosts.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.hosts.close()

    def login(self, command: Sequence[str | Path], **more: object) -> Done:
        """A command on the login node, as FakeHosts.exec."""
        return self.hosts.exec(LOGIN, command, **more)  # type: ignore[arg-type]

    def start_node(self, node: str) -> None:
        """slurmd on a host that has just started."""
        self.hosts.exec(node, ["slurmd", "-N", node], check=True)

    def submit(self, script: Path, *options: str, env: Mapping[str, str] | None = None, cwd: Path | None = None) -> int:
        """sbatch; the job's number. Its output file is where the script says, or in the script's folder."""
        done = self.login(["sbatch", "--parsable", *options, script], cwd=cwd or script.parent, env=env, check=True)
        return int(done.output.split()[-1].partition(";")[0])

    def job(self, number: int) -> dict[str, str]:
        """What ``scontrol show job`` says, by field."""
        line = self.login(["scontrol", "show", "job", "-o", str(number)], check=True).output
        return dict(re.findall(r"(\S+?)=(\S*)", line))

    def output(self, number: int) -> str:
        """What the job's script has said until now, its attempts one after the other where it appends."""
        path = Path(self.job(number)["StdOut"])
        return path.read_text(errors="replace") if path.exists() else ""

    def wait(self, number: int, timeout: float) -> str:
        """The state in which the job ended; an AssertionError with its output at the deadline."""
        deadline = time.monotonic() + timeout
        while (state := self.job(number)["JobState"]) not in ENDED:
            assert time.monotonic() < deadline, f"job {number} is {state} after {timeout} s:\n{self.output(number)}"
            time.sleep(0.5)
        return state

    def wait_for(self, number: int, text: str, timeout: float, *, times: int = 1) -> str:
        """The job's output once it has ``text`` that many times; an AssertionError if it ends or time is over."""
        deadline = time.monotonic() + timeout
        while (output := self.output(number)).count(text) < times:
            state = self.job(number)["JobState"]
            missing = self.output(number).count(text) < times
            assert not (missing and state in ENDED), f"job {number} ended as {state} without {text!r}:\n{output}"
            assert time.monotonic() < deadline, f"no {text!r} from job {number} after {timeout} s:\n{output}"
            time.sleep(0.5)
        return output

    def start_again(self, number: int, timeout: float) -> None:
        """Let a requeued job start now: Slurm would hold it for two minutes."""
        deadline = time.monotonic() + timeout
        while True:
            job = self.job(number)
            if job["JobState"] == "RUNNING" and job["Restarts"] != "0":
                return
            assert job["JobState"] not in ENDED, f"job {number} ended as {job['JobState']}:\n{self.output(number)}"
            assert time.monotonic() < deadline, f"job {number} did not start again in {timeout} s: {job}"
            if job["JobState"] == "PENDING" and job["Reason"] == "BeginTime":
                # While the first attempt is being cleared away Slurm writes over this: so again and again.
                self.login(["scontrol", "update", f"JobId={number}", "StartTime=now"])
            time.sleep(0.5)

    def left_behind(self, timeout: float = 15) -> dict[str, list[str]]:
        """Processes on the nodes that are not Slurm's own, once none changes any more; {} if all are gone."""
        deadline = time.monotonic() + timeout
        while True:
            found = {
                node: [line for line in self.hosts.processes(node).values() if not line.startswith("slurmd")]
                for node in self.nodes
            }
            found = {node: lines for node, lines in found.items() if lines}
            if not found or time.monotonic() > deadline:
                return found
            time.sleep(0.5)

    def _configure(self) -> None:
        folder, etc = self.state_folder, self.hosts.common("/etc/slurm")
        devices = [folder / f"gpu{number}" for number in range(self._gpus)]
        for device in devices:
            os.mknod(device, 0o20666, os.makedev(1, 3))  # /dev/null's twin: Slurm wants a device to hand out
        for node in self.nodes:
            (folder / "spool" / node).mkdir(parents=True)
        (folder / "state").mkdir()
        gres = f" Gres=gpu:l4:{self._gpus}" if self._gpus else ""
        claims = f"CPUs={self._cpus} RealMemory=16000{gres} State=UNKNOWN"
        lines = [f"NodeName={node} NodeAddr={self.hosts.address(node)} {claims}" for node in self.nodes]
        conf = _CONF.format(login=LOGIN, address=self.hosts.address(LOGIN), state=folder, nodes="\n".join(lines))
        (etc / "slurm.conf").write_text(conf)
        (etc / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
        (etc / "gres.conf").write_text("".join(f"Name=gpu Type=l4 File={device}\n" for device in devices))

    def _start_munge(self) -> None:
        """One munged for all hosts, with a key of its own: its socket lies on the shared disk."""
        key = self.state_folder / "munge.key"
        key.touch(mode=0o600)
        key.write_bytes(os.urandom(128))
        files = [f"--{name}-file={self.state_folder}/munge.{name}" for name in ("key", "log", "pid", "seed")]
        self.login(["munged", "--force", *files], check=True)

    def _wait_until_up(self, timeout: float = 30) -> None:
        deadline = time.monotonic() + timeout
        while True:  # --responding: a node that has not reported yet is "idle" too
            done = self.login(["sinfo", "--noheader", "--Node", "--states=idle", "--responding", "--format=%N"])
            if set(done.output.split()) == set(self.nodes):
                return
            logs = "\n".join(log.read_text()[-1500:] for log in self.state_folder.glob("*.log"))
            assert time.monotonic() < deadline, f"Slurm is not up after {timeout} s: {done.output}\n{logs}"
            time.sleep(0.1)
