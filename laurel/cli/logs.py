"""logs, stacks."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from laurel.cli.app import app
from laurel.cli.words import finish, verbatim
from laurel.types import LaurelError

Address = Annotated[
    str | None, typer.Option("--address", metavar="HOST:PORT", help="Of the running cluster.", show_default=False)
]
Nodes = Annotated[
    list[str] | None,
    typer.Option("--node", metavar="NODE", help="Only this one: address, host name or id.", show_default=False),
]


@app.command(
    help="Find the failure that came first, in the logs of all nodes.\n\n"
    + verbatim(
        "  laurel logs                                     the cluster that runs here, or the last that did\n"
        "  laurel logs --address 10.0.0.1:6379             a running one\n"
        "  laurel logs --folder /tmp/ray/session_latest    one that is gone"
    ),
    epilog="Next: docs/debugging.md",
)
def logs(
    address: Address = None,
    folder: Annotated[
        Path | None, typer.Option("--folder", metavar="DIR", help="A Ray session that is over.", show_default=False)
    ] = None,
    node: Nodes = None,
    tail: Annotated[int, typer.Option("--tail", min=0, help="Also the last lines of the file with the cause.")] = 0,
) -> None:
    finish(lambda: _logs(address, folder, node or [], tail))


@app.command(help="Show what every rank does at this moment, on every node, and who waits for a debugger.")
def stacks(
    address: Address = None,
    node: Nodes = None,
    variables: Annotated[bool, typer.Option("--locals", help="Also local variables (py-spy only).")] = False,
) -> None:
    finish(lambda: _stacks(address, node or [], variables))


def _logs(address: str | None, folder: Path | None, nodes: list[str], tail: int) -> None:
    from laurel.launch.logs import last_session, read_cluster, read_folder, show
    from laurel.workers.everywhere import running_cluster

    if address and folder:
        raise LaurelError("--address and --folder: give one, a cluster either runs or is gone")
    running = None if folder else running_cluster(address)
    if running:
        print(show(read_cluster(running, nodes), tail=tail))
        return
    place = folder or last_session()
    if place is None:
        raise LaurelError("no cluster of yours runs here and none left logs; give --address or --folder")
    print(show(read_folder(place, nodes), tail=tail))


def _stacks(address: str | None, nodes: list[str], variables: bool) -> None:
    from laurel.launch.stacks import read_cluster, show
    from laurel.workers.everywhere import running_cluster

    running = running_cluster(address)
    if running is None:
        raise LaurelError("no Ray cluster of yours runs here; give --address, or run it on a node of the cluster")
    print(show(*read_cluster(running, nodes, variables=variables)))
