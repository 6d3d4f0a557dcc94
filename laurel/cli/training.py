"""train, validate, quickstart, export."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from laurel.cli.app import app
from laurel.cli.words import RAW, ConfigFiles, DryRun, Keys, Settings, finish, verbatim
from laurel.config.usage import EXAMPLE, NEXT, SETTINGS


@app.command(
    context_settings=RAW,
    help="Train a language model.\n\n" + verbatim(EXAMPLE.format(command="laurel train")) + "\n\n" + verbatim(SETTINGS),
    epilog=verbatim(NEXT),
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
    + verbatim(
        "  laurel validate data.val_files=$HOME/data/gsm8k/test.parquet \\\n"
        "      actor_rollout_ref.model.path=Qwen/Qwen2.5-0.5B-Instruct"
    ),
    epilog=verbatim("A checkpoint: trainer.resume_mode=resume_path trainer.resume_from_path=DIR/global_step_20"),
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

    finish(lambda: run([*(settings or []), *context.args]))


@app.command(
    help="Make a Hugging Face folder of a checkpoint, for transformers, vLLM or an upload.\n\n"
    + verbatim("  laurel export checkpoints/laurel/default/global_step_20 my-model"),
    epilog='Next: AutoModelForCausalLM.from_pretrained("my-model")',
)
def export(
    checkpoint: Annotated[Path, typer.Argument(metavar="CHECKPOINT", help="A folder global_step_N.")],
    out_dir: Annotated[Path, typer.Argument(metavar="OUT_DIR", help="Folder to write; must not hold a model yet.")],
) -> None:
    from laurel.learner.export import export_checkpoint

    finish(lambda: export_checkpoint(checkpoint, out_dir))
    print(f"wrote {out_dir}")


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
