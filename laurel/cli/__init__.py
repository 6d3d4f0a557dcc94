"""The `laurel` command. Each command imports what it needs when it runs, so that help is quick.

One file a group of commands; importing it adds them.
"""

from __future__ import annotations

from laurel.cli import cluster, data, doctor, launch, logs, training  # noqa: F401
from laurel.cli.app import app


def main(argv: list[str] | None = None) -> None:
    """Entry point of the `laurel` command."""
    app(argv)
