"""cluster run, head, join, wait."""

from __future__ import annotations

import os
import socket
import sys
from typing import Annotated, Any, Literal, cast

import typer

from laurel.cli.app import app
from laurel.cli.words import RAW, Settings, finish, verbatim

cluster = typer.Typer(
    help="Make the nodes of a job one Ray cluster: the same line on each of them.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(cluster, name="cluster")

Nodes = Annotated[
    int | None, typer.Option("--nodes", min=1, help="Nodes of the job; the platform's number by default.")
]
Gpus = Annotated[int, typer.Option("--gpus-per-node", min=0, help="GPUs that each node must have.")]
Cores = Annotated[
    int, typer.Option("--cpus-per-task", min=0, help="CPUs to tell Ray; 0: what the control group allows.")
]
Timeout = Annotated[
    float, typer.Option("--join-timeout", min=1, help="Seconds without progress until the barrier gives up.")
]


@cluster.command(
    context_settings=RAW,
    help="Run on every node of a job: rank 0 trains, the others lend their GPUs, all end together.\n\n"
    + verbatim(
        "  laurel cluster run --platform slurm --gpus-per-node 8 -- KEY=VALUE...\n"
        "  laurel cluster run --rank $RANK --nodes 2 --head 10.0.0.1 -- KEY=VALUE..."
    ),
    epilog="LAUREL_CLUSTER_TOKEN must hold the same random text on every node; `laurel launch` sees to it.",
)
def run(
    settings: Settings = None,
    platform: Annotated[
        str | None, typer.Option(help="slurm, skypilot or dstack: whose variables say which node this is.")
    ] = None,
    rank: Annotated[
        int | None, typer.Option(min=0, help="This node's number, the head's is 0 (without --platform).")
    ] = None,
    head: Annotated[
        str | None, typer.Option(metavar="HOST[:PORT]", help="The node of rank 0 (without --platform).")
    ] = None,
    job: Annotated[str, typer.Option(help="A name that tells jobs apart (without --platform).")] = "laurel",
    nodes: Nodes = None,
    gpus: Gpus = 0,
    cores: Cores = 0,
    least: Annotated[
        int, typer.Option("--min-nodes", min=0, help="Go on with this many at the deadline; 0: all are needed.")
    ] = 0,
    timeout: Timeout = 600.0,
    device: Annotated[str | None, typer.Option(help="cpu: train without GPUs (trainer.device=cpu).")] = None,
) -> None:
    def act() -> int:
        from laurel.config.load import read
        from laurel.launch.cluster.head import run_head
        from laurel.launch.cluster.join import run_join
        from laurel.launch.cluster.secret import take_token
        from laurel.launch.cluster.terms import Terms
        from laurel.types import ConfigError

        words = list(settings or [])
        if device is not None and not any(word.lstrip("+").startswith("trainer.device=") for word in words):
            words.append(f"trainer.device={device}")
        place, port = _place(platform, rank, head, job, nodes)
        terms = Terms(gpus=gpus, cores=cores, least=least, join_timeout_s=timeout, port=port)
        token = take_token()
        if place.rank == 0:
            problems = read(tuple(words)).problems
            if problems:
                raise ConfigError(list(problems))
            return run_head(place, token, terms, words, _say)
        return run_join(place, token, terms, words, _say)

    finish(act)


@cluster.command(
    help="Start a cluster by hand: this node is its head until Ctrl-C. Prints the line for the other nodes."
)
def head(
    nodes: Nodes = None,
    gpus: Gpus = 0,
    cores: Cores = 0,
    timeout: Timeout = 600.0,
    port: Annotated[int | None, typer.Option(help="First of 16 ports; by default a free block.")] = None,
) -> None:
    def act() -> int:
        from laurel.launch.cluster.head import hold_head
        from laurel.launch.cluster.place import Place
        from laurel.launch.cluster.secret import kept_token
        from laurel.launch.cluster.terms import Terms

        place = Place(0, nodes or 0, (socket.gethostname(),), f"hand/{os.getuid()}")
        terms = Terms(gpus=gpus, cores=cores, join_timeout_s=timeout, port=port)
        return hold_head(place, kept_token(), terms, _say, lambda made: _say(_by_hand(made)))

    finish(act)


@cluster.command(help="Add this node to a cluster that `laurel cluster head` started, until that ends.")
def join(
    address: Annotated[str, typer.Argument(metavar="HEAD:PORT", help="As `laurel cluster head` printed it.")],
    cores: Cores = 0,
    timeout: Timeout = 120.0,
) -> None:
    def act() -> int:
        from laurel.launch.cluster.join import run_join
        from laurel.launch.cluster.place import Place
        from laurel.launch.cluster.secret import kept_token
        from laurel.launch.cluster.terms import Terms

        host, port = _host_and_port(address)
        if port is None:
            raise _wrong(f"HEAD:PORT={address} has no port; `laurel cluster head` prints it")
        place = Place(1, 0, (host,), "hand")
        return run_join(
            place, kept_token(), Terms(cores=cores, join_timeout_s=timeout, port=port), [], _say, numbered=False
        )

    finish(act)


@cluster.command(help="Wait until a Ray cluster has enough nodes; fails at the deadline, naming what is there.")
def wait(
    nodes: Annotated[int, typer.Option("--nodes", min=1, help="Nodes to wait for.")],
    gpus: Gpus = 0,
    address: Annotated[
        str | None, typer.Option(help="host:port of Ray; by default RAY_ADDRESS or this machine's.")
    ] = None,
    timeout: Annotated[float, typer.Option("--timeout", min=1, help="Seconds.")] = 600.0,
) -> None:
    def act() -> int:
        from laurel.launch.cluster.wait import wait_for_nodes

        return wait_for_nodes(nodes, gpus, address, timeout, _say)

    finish(act)


def _place(
    platform: str | None, rank: int | None, head: str | None, job: str, nodes: int | None
) -> tuple[Any, int | None]:
    from laurel.launch.cluster.place import Place, read_place

    if platform is not None:
        if platform not in ("slurm", "skypilot", "dstack"):
            raise _wrong(
                f"--platform={platform}: one of slurm, skypilot, dstack; elsewhere give --rank, --nodes and --head"
            )
        if rank is not None or head is not None:
            raise _wrong("--rank and --head come from the platform's variables; leave them out with --platform")
        place = read_place(cast(Literal["slurm", "skypilot", "dstack"], platform))
        if nodes is not None and nodes != place.nodes:
            raise _wrong(
                f"--nodes={nodes}, but {platform} gave this job {place.nodes}; ask the platform for {nodes}, "
                "or leave --nodes out"
            )
        return place, None
    if rank is None or nodes is None or head is None:
        raise _wrong("give --platform, or all of --rank, --nodes and --head")
    if rank >= nodes:
        raise _wrong(f"--rank={rank} with --nodes={nodes}: ranks count from 0 to {nodes - 1}")
    host, port = _host_and_port(head)
    return Place(rank, nodes, (host,), f"named/{job}"), port


def _host_and_port(text: str) -> tuple[str, int | None]:
    host, _, port = text.partition(":")
    if port and not (port.isdigit() and 0 < int(port) < 65536):
        raise _wrong(f"{text}: the port after the colon must be a number below 65536")
    return host, int(port) if port else None


def _by_hand(made: Any) -> str:
    return (
        f"on every other node, with the same ~/.laurel/cluster_token (mode 600): laurel cluster join "
        f"{made.address}:{made.block.first}\nfor ray's own commands here: export RAY_ADDRESS={made.ray_address} "
        f"RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH={made.node.environ['RAY_AUTH_TOKEN_PATH']}\nCtrl-C ends the cluster"
    )


def _wrong(message: str) -> Exception:
    from laurel.types import LaurelError

    return LaurelError(message)


def _say(line: str) -> None:
    print(f"[{socket.gethostname()}] {line}", file=sys.stderr, flush=True)
