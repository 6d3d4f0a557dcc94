"""What the commands share: raw words, settings, texts as they stand, and how a command ends."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from laurel.types import ConfigError, LaurelError

RAW: dict[str, Any] = {"allow_extra_args": True, "ignore_unknown_options": True}

Settings = Annotated[list[str] | None, typer.Argument(metavar="KEY=VALUE...", help="Settings.", show_default=False)]
ConfigFiles = Annotated[
    list[Path] | None, typer.Option("--config", metavar="FILE", help="YAML file with settings.", show_default=False)
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show the resolved settings and the plan; hold nothing.")]
Keys = Annotated[bool, typer.Option("--keys", help="List keys, all or those that match the word that follows.")]


def verbatim(text: str) -> str:
    """Paragraphs as they stand: ``\\b`` keeps their line breaks, and brackets are no markup."""
    return "\n\n".join("\b\n" + escape(paragraph) for paragraph in text.strip("\n").split("\n\n"))


def finish(act: Callable[[], object]) -> None:
    """Run a command to its end; what Laurel knows to be wrong is said without a traceback."""
    try:
        code = act()
    except LaurelError as error:
        sys.stdout.flush()
        print(f"error: {error}", file=sys.stderr)
        raise typer.Exit(2 if isinstance(error, ConfigError) else 1) from error
    if isinstance(code, int) and code:
        raise typer.Exit(code)
