"""Additions of two whole numbers, generated: short prompts and answers of a few tokens, for a first run on a CPU.

A problem and its mirror (a+b and b+a) are always in the same split, so that validation asks for sums never trained on.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

from laurel.data.preprocess.source import write_split
from laurel.data.table import DataError, Row

DATA_SOURCE = "laurel/arithmetic"
EXAMPLES = ((2, 3), (9, 4))


def write(
    local_save_dir: str | Path,
    *,
    lowest: int = 1,
    highest: int = 30,
    train_size: int = -1,
    val_size: int = 200,
    seed: int = 1,
    examples: Sequence[tuple[int, int]] = EXAMPLES,
    spaced: bool = True,
) -> list[Path]:
    """Write train.parquet and test.parquet with problems ``a + b =``, ``lowest`` <= a, b <= ``highest``.

    ``val_size`` unordered pairs are held out, each asked once in a random order; of the others every order is a
    training problem, at most ``train_size`` of them (-1: all). ``examples`` are solved before the question as turns of
    user and assistant; these pairs are in neither split. Without ``spaced`` a problem reads ``a+b=``, which takes fewer
    tokens. The same arguments give the same rows. Raises DataError if the range is too small.
    """
    train, val = make_problems(
        lowest=lowest, highest=highest, train_size=train_size, val_size=val_size, seed=seed, examples=examples
    )
    return [
        write_split(
            [_row(a, b, split, i, examples, spaced) for i, (a, b) in enumerate(problems)], local_save_dir, split
        )
        for split, problems in (("train", train), ("test", val))
    ]


def make_problems(
    *,
    lowest: int,
    highest: int,
    train_size: int,
    val_size: int,
    seed: int,
    examples: Sequence[tuple[int, int]] = EXAMPLES,
) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Training and validation problems, shuffled, without a pair or its mirror in both."""
    if val_size < 1:
        raise DataError(f"val_size={val_size} must be at least 1")
    shown = {(min(pair), max(pair)) for pair in examples}
    pairs = [(a, b) for a in range(lowest, highest + 1) for b in range(a, highest + 1) if (a, b) not in shown]
    if len(pairs) <= val_size:
        raise DataError(
            f"numbers from {lowest} to {highest} make {len(pairs)} different pairs, too few to hold out "
            f"val_size={val_size} and train on the rest; widen the range or hold out fewer"
        )
    draw = random.Random(f"arithmetic {seed}")
    draw.shuffle(pairs)
    val = [pair if draw.random() < 0.5 else pair[::-1] for pair in pairs[:val_size]]
    train = sorted({order for a, b in pairs[val_size:] for order in ((a, b), (b, a))})
    draw.shuffle(train)
    if train_size > len(train):
        raise DataError(
            f"train_size={train_size} is more than the {len(train)} problems of this range; use at most that"
        )
    return (train if train_size < 0 else train[:train_size]), val


def _row(a: int, b: int, split: str, index: int, examples: Sequence[tuple[int, int]], spaced: bool) -> Row:
    form = "{} + {} =" if spaced else "{}+{}="
    turns = [(form.format(x, y), str(x + y)) for x, y in examples]
    messages = [
        {"role": role, "content": text}
        for turn in turns
        for role, text in zip(("user", "assistant"), turn, strict=True)
    ]
    return {
        "data_source": DATA_SOURCE,
        "prompt": [*messages, {"role": "user", "content": form.format(a, b)}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": str(a + b)},
        "extra_info": {"split": split, "index": index, "a": a, "b": b},
    }
