"""laurel data: a data set as the parquet files that training reads."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from laurel.cli.app import app
from laurel.cli.words import finish

data_app = typer.Typer(
    help="Write a data set as the parquet files that training reads.",
    epilog="Next: laurel train data.train_files=DIR/train.parquet data.val_files=DIR/test.parquet ...",
    no_args_is_help=True,
)

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


def _write(write: Callable[[], list[Path]]) -> None:
    def act() -> None:
        for path in write():
            print(f"wrote {path}")

    finish(act)


app.add_typer(data_app, name="data")
