"""launch ray, slurm, skypilot, dstack, kuberay; status, logs, stop."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from laurel.cli.app import app
from laurel.cli.words import RAW, Settings, finish, verbatim

launch = typer.Typer(
    help="Run a training on the nodes of a platform, as one command.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="What each platform needs: docs/multinode.md",
)
app.add_typer(launch, name="launch")

Nodes = Annotated[int, typer.Option("--nodes", min=1, help="Nodes.")]
Gpus = Annotated[int, typer.Option("--gpus-per-node", min=0, help="GPUs of each node; 0: train on CPUs.")]
Cores = Annotated[int, typer.Option("--cpus-per-task", min=0, help="Cores of each node; 0: what the platform gives.")]
Name = Annotated[
    str | None, typer.Option("--name", help="The job's name; by default laurel and the time.", show_default=False)
]
Setup = Annotated[
    list[str] | None,
    typer.Option("--setup", help="A shell line for every node, first.", show_default=False),
]
Secret = Annotated[
    list[str] | None,
    typer.Option("--secret", metavar="NAME", help="A variable of yours for the nodes. Repeatable.", show_default=False),
]
Least = Annotated[int, typer.Option("--min-nodes", min=0, help="Go on with this many at the deadline; 0: all.")]
Timeout = Annotated[int, typer.Option("--join-timeout", min=1, help="Seconds without progress until giving up.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the file that would be submitted; submit nothing.")]
Detach = Annotated[bool, typer.Option("--detach", help="Do not follow the logs.")]
Image = Annotated[str | None, typer.Option("--image", help="Container image.", show_default=False)]
Memory = Annotated[str | None, typer.Option("--memory", help="Memory of each node.", show_default=False)]
Path_ = Annotated[
    str | None,
    typer.Option("--path", metavar="DIR", help="Put before PATH on the nodes: a venv's bin.", show_default=False),
]


@launch.command(
    context_settings=RAW,
    help="Slurm: sbatch of one script, on the login node.\n\n"
    + verbatim("  laurel launch slurm --nodes 2 --gpus-per-node 8 --partition gpu --time 12:00:00 -- KEY=VALUE..."),
)
def slurm(
    settings: Settings = None,
    nodes: Nodes = 1,
    gpus: Gpus = 0,
    cores: Cores = 0,
    name: Name = None,
    setup: Setup = None,
    partition: Annotated[str | None, typer.Option(show_default=False)] = None,
    account: Annotated[str | None, typer.Option(show_default=False)] = None,
    qos: Annotated[str | None, typer.Option(show_default=False)] = None,
    limit: Annotated[str | None, typer.Option("--time", help="Time limit, as Slurm writes it.")] = None,
    memory: Memory = None,
    apptainer: Annotated[str | None, typer.Option(metavar="IMAGE", help="Run inside this image.")] = None,
    bind: Annotated[list[str] | None, typer.Option(help="Folder for Apptainer, SOURCE[:TARGET]. Repeatable.")] = None,
    sbatch: Annotated[list[str] | None, typer.Option(help="Another option of sbatch. Repeatable.")] = None,
    path: Path_ = None,
    least: Least = 0,
    timeout: Timeout = 600,
    dry_run: DryRun = False,
    detach: Detach = False,
) -> None:
    def act() -> int:
        from laurel.launch.spec import SlurmOptions

        own = str(Path(sys.executable).parent) if path is None and apptainer is None else path
        options = SlurmOptions(
            partition, account, qos, limit, memory, apptainer, tuple(bind or ()), tuple(sbatch or ()), own
        )
        job = _job(name, nodes, gpus, settings, cores, least, timeout, setup)
        return _launch(job, options, dry_run=dry_run, detach=detach, files_here=True)

    finish(act)


@launch.command(
    context_settings=RAW,
    help="SkyPilot: a task on the machines of a cloud or of Kubernetes.\n\n"
    + verbatim("  laurel launch skypilot --nodes 2 --gpus-per-node 1 --accelerator L4 -- KEY=VALUE..."),
)
def skypilot(
    settings: Settings = None,
    nodes: Nodes = 1,
    gpus: Gpus = 0,
    cores: Cores = 0,
    name: Name = None,
    setup: Setup = None,
    secret: Secret = None,
    accelerator: Annotated[str | None, typer.Option(help="Type of GPU, such as L4.", show_default=False)] = None,
    infra: Annotated[str | None, typer.Option(help="Such as aws, k8s/CONTEXT, slurm/NAME.", show_default=False)] = None,
    memory: Memory = None,
    image: Image = None,
    workdir: Annotated[str, typer.Option(help="Folder that is sent.")] = ".",
    mount: Annotated[list[str] | None, typer.Option(metavar="TARGET=SOURCE", help="Files to send. Repeatable.")] = None,
    path: Path_ = None,
    least: Least = 0,
    timeout: Timeout = 600,
    dry_run: DryRun = False,
    detach: Detach = False,
) -> None:
    def act() -> int:
        from laurel.launch.spec import SkyPilotOptions

        options = SkyPilotOptions(accelerator, infra, memory, image, workdir, tuple(mount or ()), path)
        job = _job(name, nodes, gpus, settings, cores, least, timeout, setup, secret)
        return _launch(job, options, dry_run=dry_run, detach=detach, files_here=False)

    finish(act)


@launch.command(
    context_settings=RAW,
    help="dstack: a task on a fleet.\n\n"
    + verbatim("  laurel launch dstack --nodes 2 --gpus-per-node 8 --gpu 80GB -- KEY=VALUE..."),
)
def dstack(
    settings: Settings = None,
    nodes: Nodes = 1,
    gpus: Gpus = 0,
    cores: Cores = 0,
    name: Name = None,
    setup: Setup = None,
    secret: Secret = None,
    gpu: Annotated[str | None, typer.Option(help="Memory or type, such as 80GB or H100.", show_default=False)] = None,
    cpu: Annotated[str | None, typer.Option(help="As dstack writes it, such as x86:8..", show_default=False)] = None,
    memory: Memory = None,
    image: Image = None,
    shm: Annotated[str | None, typer.Option(help="Shared memory, such as 128GB.", show_default=False)] = None,
    volume: Annotated[list[str] | None, typer.Option(metavar="NAME:PATH", help="Volume. Repeatable.")] = None,
    repository: Annotated[str | None, typer.Option(help="Git folder or URL to fetch.", show_default=False)] = None,
    line: Annotated[
        list[str] | None,
        typer.Option(help="Another line of the file, such as 'spot_policy: auto'. Repeatable.", show_default=False),
    ] = None,
    path: Path_ = None,
    least: Least = 0,
    timeout: Timeout = 600,
    dry_run: DryRun = False,
    detach: Detach = False,
) -> None:
    def act() -> int:
        from laurel.launch.spec import DstackOptions

        options = DstackOptions(gpu, image, shm, cpu, memory, tuple(volume or ()), repository, path, tuple(line or ()))
        job = _job(name, nodes, gpus, settings, cores, least, timeout, setup, secret)
        return _launch(job, options, dry_run=dry_run, detach=detach, files_here=False)

    finish(act)


@launch.command(
    context_settings=RAW,
    help="Ray: a job on a cluster that runs already.\n\n" + verbatim("  laurel launch ray --nodes 2 -- KEY=VALUE..."),
)
def ray(
    settings: Settings = None,
    nodes: Nodes = 1,
    gpus: Gpus = 0,
    name: Name = None,
    address: Annotated[str, typer.Option(help="The dashboard's.")] = "http://127.0.0.1:8265",
    runtime_env: Annotated[
        str | None, typer.Option(metavar="FILE", help="What is sent; without it the nodes' own Laurel runs.")
    ] = None,
    dry_run: DryRun = False,
    detach: Detach = False,
) -> None:
    def act() -> int:
        from laurel.launch.spec import RayOptions

        job = _job(name, nodes, gpus, settings, 0, 0, 600, None)
        return _launch(job, RayOptions(address, runtime_env), dry_run=dry_run, detach=detach, files_here=True)

    finish(act)


@launch.command(
    context_settings=RAW,
    help="KubeRay: print a RayJob for kubectl.\n\n"
    + verbatim("  laurel launch kuberay --nodes 2 --gpus-per-node 8 --image IMAGE -- KEY=VALUE... > job.yaml"),
)
def kuberay(
    image: Annotated[str, typer.Option(help="Container image with Laurel and Ray.")],
    settings: Settings = None,
    nodes: Nodes = 1,
    gpus: Gpus = 0,
    cores: Cores = 0,
    name: Name = None,
    secret: Secret = None,
    namespace: Annotated[str, typer.Option()] = "default",
    memory: Annotated[str, typer.Option(help="Memory of each pod.")] = "64Gi",
    claim: Annotated[str | None, typer.Option(help="PersistentVolumeClaim for all pods.", show_default=False)] = None,
    mount: Annotated[str, typer.Option(help="Where it is mounted.")] = "/checkpoints",
) -> None:
    def act() -> int:
        from laurel.launch.spec import KubeRayOptions

        options = KubeRayOptions(image=image, namespace=namespace, memory=memory, claim=claim, mount=mount)
        job = _job(name, nodes, gpus, settings, cores, 0, 600, None, secret)
        return _launch(job, options, dry_run=True, detach=True, files_here=False)

    finish(act)


@launch.command(help="What a job does now; without a name, every job that was launched from here.")
def status(name: Annotated[str | None, typer.Argument(metavar="NAME", show_default=False)] = None) -> None:
    def act() -> None:
        from laurel.launch import jobs

        print(jobs.status(name) if name else "\n".join(jobs.listed()) or "nothing was launched from here")

    finish(act)


@launch.command(help="What a job has said, until now or as it goes on.")
def logs(
    name: Annotated[str, typer.Argument(metavar="NAME")],
    follow: Annotated[bool, typer.Option("--follow", help="Until the job ends.")] = False,
) -> None:
    def act() -> int:
        from laurel.launch import jobs

        return jobs.logs(name, follow=follow)

    finish(act)


@launch.command(help="End a job; on SkyPilot its machines too.")
def stop(name: Annotated[str, typer.Argument(metavar="NAME")]) -> None:
    def act() -> None:
        from laurel.launch import jobs

        jobs.stop(name)

    finish(act)


def _job(
    name: str | None,
    nodes: int,
    gpus: int,
    settings: list[str] | None,
    cores: int,
    least: int,
    timeout: int,
    setup: list[str] | None,
    secrets: list[str] | None = None,
) -> Any:
    from laurel.launch.spec import Job

    return Job(
        name=name or f"laurel-{time.strftime('%m%d-%H%M%S')}",
        nodes=nodes,
        gpus=gpus,
        settings=tuple(settings or ()),
        cpus=cores,
        min_nodes=least,
        join_timeout_s=timeout,
        setup=tuple(setup or ()),
        secrets=tuple(secrets or ()),
    )


def _launch(job: Any, options: Any, *, dry_run: bool, detach: bool, files_here: bool) -> int:
    from laurel.launch.spec import check

    for note in check(job, files_here=files_here):
        print(note, file=sys.stderr, flush=True)
    if dry_run:
        from laurel.launch.render import render

        print(render(job, options), end="")
        return 0
    from laurel.launch import jobs

    return jobs.launch(job, options, say=_say, follow=not detach)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
