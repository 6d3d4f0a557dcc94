"""What is to be launched, whatever the platform, and the line that every node runs."""

from __future__ import annotations

import re
from dataclasses import dataclass

from laurel.launch.cluster.terms import training_words
from laurel.types import ConfigError, LaurelError, Problem

NAME = re.compile(r"[a-z]([a-z0-9-]{0,38}[a-z0-9])?")  # what every platform takes


@dataclass(frozen=True)
class Job:
    """One training on ``nodes`` nodes with ``gpus`` GPUs and ``cpus`` cores each (0 cores: what the platform gives).

    ``setup`` are shell lines that run on every node first; ``secrets`` are names of variables that reach the nodes by
    the platform's own way for secrets, and whose values are written nowhere.
    """

    name: str
    nodes: int
    gpus: int
    settings: tuple[str, ...]
    cpus: int = 0
    min_nodes: int = 0
    join_timeout_s: int = 600
    setup: tuple[str, ...] = ()
    secrets: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Raises LaurelError if a platform would not take the name, or a secret is given with its value."""
        if not NAME.fullmatch(self.name):
            raise LaurelError(
                f"--name={self.name}: use small letters, digits and dashes, a letter first, 40 at most: what "
                "every platform takes"
            )
        for secret in self.secrets:
            if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", secret):
                raise LaurelError(
                    f"--secret={secret.partition('=')[0]}...: give the name of a variable; its value is taken from the "
                    "environment, since a command line can be read by others"
                )

    def training(self) -> list[str]:
        """The settings, with the job's numbers of nodes and GPUs where they are silent."""
        return training_words(self.settings, nodes=self.nodes, came=self.nodes, gpus=self.gpus)

    def node_words(self, platform: str) -> list[str]:
        """The command of every node; which node it is, it finds in the platform's variables."""
        words = ["laurel", "cluster", "run", "--platform", platform, "--nodes", str(self.nodes)]
        words += ["--gpus-per-node", str(self.gpus)]
        words += ["--cpus-per-task", str(self.cpus)] if self.cpus else []
        words += ["--min-nodes", str(self.min_nodes)] if self.min_nodes else []
        words += ["--join-timeout", str(self.join_timeout_s)]
        return [*words, "--", *self.settings]


@dataclass(frozen=True)
class SlurmOptions:
    """``more`` are further #SBATCH options as they stand, such as ``--reservation=x``. ``path`` goes before PATH on the
    nodes: the environment that launched. With ``image`` the node's command runs inside Apptainer."""

    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    time: str | None = None
    memory: str | None = None
    image: str | None = None
    binds: tuple[str, ...] = ()
    more: tuple[str, ...] = ()
    path: str | None = None


@dataclass(frozen=True)
class SkyPilotOptions:
    """``accelerator`` is a type such as L4; ``mounts`` are TARGET=SOURCE."""

    accelerator: str | None = None
    infra: str | None = None
    memory: str | None = None
    image: str | None = None
    workdir: str | None = "."
    mounts: tuple[str, ...] = ()
    path: str | None = None


@dataclass(frozen=True)
class DstackOptions:
    """``gpu`` is memory or a type, such as 80GB or H100; ``volumes`` are NAME:PATH; ``more`` are further lines of the
    file as they stand, such as ``spot_policy: auto``."""

    gpu: str | None = None
    image: str | None = None
    shared_memory: str | None = None
    cpu: str | None = None
    memory: str | None = None
    volumes: tuple[str, ...] = ()
    repository: str | None = None
    path: str | None = None
    more: tuple[str, ...] = ()


@dataclass(frozen=True)
class RayOptions:
    """A Ray that runs: ``address`` of its dashboard. ``runtime_env`` is the file that says which folder is sent."""

    address: str = "http://127.0.0.1:8265"
    runtime_env: str | None = None


@dataclass(frozen=True)
class KubeRayOptions:
    """``image`` holds Laurel and Ray. ``claim`` is a PersistentVolumeClaim that all pods mount at ``mount``."""

    image: str
    namespace: str = "default"
    ray_version: str = "2.60.0"
    memory: str = "64Gi"
    claim: str | None = None
    mount: str = "/checkpoints"


Options = SlurmOptions | SkyPilotOptions | DstackOptions | RayOptions | KubeRayOptions

# What lies on the nodes of a cloud need not lie here.
_FILES = (
    "data.train_files",
    "data.val_files",
    "actor_rollout_ref.model.path",
    "critic.model.path",
    "reward.custom_reward_function.path",
)


def check(job: Job, *, files_here: bool) -> list[str]:
    """Check the settings as ``laurel train`` does, short of what only the nodes can tell; lines to be said.

    ``files_here``: whether this machine sees the files that the nodes will see. Raises ConfigError with every problem.
    """
    from laurel.config.load import read
    from laurel.launch.cluster.terms import check_nodes, given
    from laurel.preflight.check import check_all
    from laurel.trainer.misfit import check as check_memory

    check_nodes(job.settings, job.nodes)
    words = job.training()
    if job.gpus and given(words, "trainer.device") is None:
        words.append("trainer.device=cuda")  # of the nodes; this machine may have none
    reading = read(words)
    config = reading.loaded.config
    found = [
        problem for problem in (*check_all(config), *check_memory(config)) if problem.field not in reading.suspects
    ]
    skipped = [] if files_here else [problem for problem in found if problem.field in _FILES]
    problems: list[Problem] = [*reading.problems]
    problems += [problem for problem in found if not problem.machine and problem not in skipped]
    if problems:
        raise ConfigError(problems)
    asked = config.trainer.n_gpus_per_node or 0
    if job.gpus and config.trainer.device == "cuda" and asked > job.gpus:
        raise LaurelError(
            f"trainer.n_gpus_per_node={asked}, but --gpus-per-node={job.gpus}: ask for {asked}, or leave "
            "trainer.n_gpus_per_node out"
        )
    notes = [f"note: {note}" for note in reading.loaded.notes]
    return notes + [f"note: not looked at here, the nodes will: {problem.field}={problem.value}" for problem in skipped]
