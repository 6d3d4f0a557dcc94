"""doctor."""

from __future__ import annotations

from typing import Annotated

import typer

from laurel.cli.app import app
from laurel.cli.words import RAW, ConfigFiles, Settings, finish, verbatim


@app.command(
    context_settings=RAW,
    help="Look at every node of the cluster that runs here, or at this machine, within a minute: what would make a run "
    "fail or crawl, each with its cure. With settings also their model, data, reward function and folders.\n\n"
    + verbatim(
        "  laurel doctor\n"
        "  laurel doctor --address 10.0.0.1:6379\n"
        "  laurel doctor data.train_files=... actor_rollout_ref.model.path=... trainer.nnodes=2"
    ),
    epilog="Exit code 0: no errors; 1: errors. What each check asks: docs/doctor.md",
)
def doctor(
    context: typer.Context,
    settings: Settings = None,
    config: ConfigFiles = None,
    address: Annotated[
        str | None, typer.Option("--address", metavar="HOST:PORT", help="Of the running cluster.", show_default=False)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    words = [*(settings or []), *context.args]
    words += [word for file in config or [] for word in ("--config", str(file))]
    finish(lambda: _doctor(address, words, as_json=as_json))


def _doctor(address: str | None, words: list[str], *, as_json: bool) -> int:
    from laurel.config.load import read
    from laurel.preflight.doctor.visit import visit

    report = visit(address, read(words) if words else None)
    print(report.json() if as_json else report.text())
    return report.code
