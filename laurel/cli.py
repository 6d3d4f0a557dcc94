"""The `laurel` command. Each command imports what it needs when it runs, so that help is quick."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from laurel.config.usage import EXAMPLE, NEXT, SETTINGS
from laurel.types import ConfigError, LaurelError

RAW: dict[str, Any] = {"allow_extra_args": True, "ignore_unknown_options": True}


def _verbatim(text: str) -> str:
    """Paragraphs as they stand: ``\\b`` keeps their line breaks, and brackets are no markup."""
    return "\n\n".join("\b\n" + escape(paragraph) for paragraph in text.strip("\n").split("\n\n"))


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
data_app = typer.Typer(
    help="Write a data set as the parquet files that training reads.",
    epilog="Next: laurel train data.train_files=DIR/train.parquet data.val_files=DIR/test.parquet ...",
    no_args_is_help=True,
)

Settings = Annotated[list[str] | None, typer.Argument(metavar="KEY=VALUE...", help="Settings.", show_default=False)]
ConfigFiles = Annotated[
    list[Path] | None, typer.Option("--config", metavar="FILE", help="YAML file with settings.", show_default=False)
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show the resolved settings and the plan; hold nothing.")]
Keys = Annotated[bool, typer.Option("--keys", help="List keys, all or those that match the word that follows.")]
SaveDir = Annotated[Path, typer.Option("--local_save_dir", metavar="DIR", help="Folder for the parquet files.")]
LocalData = Annotated[
    Path | None,
    typer.Option(
        "--local_dataset_path",
        metavar="DIR",
        help="A copy on this disk: a Hugging Face folder, parquet or jsonl. Without it the Hub is asked.",
        show_default=False,
    ),
]


@app.command(
    context_settings=RAW,
    help="Train a language model.\n\n"
    + _verbatim(EXAMPLE.format(command="laurel train"))
    + "\n\n"
    + _verbatim(SETTINGS),
    epilog=_verbatim(NEXT),
)
def train(
    context: typer.Context,
    settings: Settings = None,
    config: ConfigFiles = None,
    dry_run: DryRun = False,
    keys: Keys = False,
) -> None:
    _train("laurel train", context, settings, config, dry_run=dry_run, keys=keys)


@app.command(
    context_settings=RAW,
    help="Validate a model or a checkpoint, and stop: `laurel train` with trainer.val_only=True.\n\n"
    + _verbatim(
        "  laurel validate data.val_files=$HOME/data/gsm8k/test.parquet \\\n"
        "      actor_rollout_ref.model.path=Qwen/Qwen2.5-0.5B-Instruct"
    ),
    epilog=_verbatim("A checkpoint: trainer.resume_mode=resume_path trainer.resume_from_path=DIR/global_step_20"),
)
def validate(
    context: typer.Context, settings: Settings = None, config: ConfigFiles = None, dry_run: DryRun = False
) -> None:
    _train("laurel validate", context, settings, config, dry_run=dry_run, more=["trainer.val_only=True"])


@app.command(
    help="Train a small real model on this machine, in minutes, with nothing prepared.\n\n"
    "Fetches SmolLM2-135M-Instruct, writes arithmetic problems, trains with GRPO, and shows answers before and after.",
    epilog="Next: laurel train --help",
    context_settings=RAW,
)
def quickstart(context: typer.Context, settings: Settings = None) -> None:
    from laurel.trainer.quickstart import run

    _finish(lambda: run([*(settings or []), *context.args]))


@app.command(
    help="Make a Hugging Face folder of a checkpoint, for transformers, vLLM or an upload.\n\n"
    + _verbatim("  laurel export checkpoints/laurel/default/global_step_20 my-model"),
    epilog='Next: AutoModelForCausalLM.from_pretrained("my-model")',
)
def export(
    checkpoint: Annotated[Path, typer.Argument(metavar="CHECKPOINT", help="A folder global_step_N.")],
    out_dir: Annotated[Path, typer.Argument(metavar="OUT_DIR", help="Folder to write; must not hold a model yet.")],
) -> None:
    from laurel.learner.export import export_checkpoint

    _finish(lambda: export_checkpoint(checkpoint, out_dir))
    print(f"wrote {out_dir}")


@data_app.command(help="GSM8K: grade-school word problems (openai/gsm8k).")
def gsm8k(local_save_dir: SaveDir, local_dataset_path: LocalData = None) -> None:
    from laurel.data.preprocess import gsm8k as room

    _write(lambda: room.write(local_save_dir, local_dataset_path))


@data_app.command(name="math", help="MATH: competition problems with boxed answers.")
def math_dataset(local_save_dir: SaveDir, local_dataset_path: LocalData = None) -> None:
    from laurel.data.preprocess import math_dataset as room

    _write(lambda: room.write(local_save_dir, local_dataset_path))


@data_app.command(help="Arithmetic: short sums that a small model can learn; made here, nothing is fetched.")
def arithmetic(
    local_save_dir: SaveDir,
    highest: Annotated[int, typer.Option(help="Largest number in a sum.")] = 30,
    val_size: Annotated[int, typer.Option("--val_size", help="Problems held out for validation.")] = 200,
    seed: Annotated[int, typer.Option(help="Seed of the split and the order.")] = 1,
) -> None:
    from laurel.data.preprocess import arithmetic as room

    _write(lambda: room.write(local_save_dir, highest=highest, val_size=val_size, seed=seed))


app.add_typer(data_app, name="data")


def main(argv: list[str] | None = None) -> None:
    """Entry point of the `laurel` command."""
    app(argv)


def _train(
    command: str,
    context: typer.Context,
    settings: list[str] | None,
    config: list[Path] | None,
    *,
    dry_run: bool,
    keys: bool = False,
    more: list[str] | None = None,
) -> None:
    """The same function as ``python3 -m laurel.trainer.main_ppo``, with typer's options put back among the words."""
    from laurel.trainer.main_ppo import main as main_ppo

    words = [*(settings or []), *context.args, *(more or [])]
    words += [word for file in config or [] for word in ("--config", str(file))]
    words += ["--dry-run"] * dry_run + ["--keys"] * keys
    if not words:
        print(context.get_help())
        raise typer.Exit(2)
    raise typer.Exit(main_ppo(words, command=command))


def _write(write: Callable[[], list[Path]]) -> None:
    def act() -> None:
        for path in write():
            print(f"wrote {path}")

    _finish(act)


def _finish(act: Callable[[], object]) -> None:
    """Run a command to its end; what Laurel knows to be wrong is said without a traceback."""
    try:
        code = act()
    except LaurelError as error:
        sys.stdout.flush()
        print(f"error: {error}", file=sys.stderr)
        raise typer.Exit(2 if isinstance(error, ConfigError) else 1) from error
    if isinstance(code, int) and code:
        raise typer.Exit(code)
