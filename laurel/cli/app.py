"""The `laurel` command itself, to which each file of this room adds its commands."""

from __future__ import annotations

import typer

app = typer.Typer(
    name="laurel",
    help="Reinforcement learning for language models, on Ray, from one CPU to many GPU nodes.",
    epilog="First time here? `laurel quickstart` trains a real model on this machine in minutes; "
    "`laurel train --help` shows how to train yours.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
