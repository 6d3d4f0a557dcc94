r"""MATH (competition problems): the answer is what the solution's last ``\boxed{}`` holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from laurel.data.preprocess.source import read_split, write_split
from laurel.data.table import DataError, Row

DATA_SOURCE = "DigitalLearningGmbH/MATH-lighteval"
INSTRUCTION = "Let's think step by step and output the final answer within \\boxed{}."


def write(local_save_dir: str | Path, local_dataset_path: str | Path | None = None) -> list[Path]:
    """Write train.parquet and test.parquet. Raises DataError when the data set can be neither read nor fetched."""
    paths = []
    for split in ("train", "test"):
        raw = read_split(
            split,
            local_dataset_path=local_dataset_path,
            hub_id=DATA_SOURCE,
            hub_name=None,
            required=["problem", "solution"],
        )
        paths.append(write_split([_row(item, split, i) for i, item in enumerate(raw)], local_save_dir, split))
    return paths


def _row(item: dict[str, Any], split: str, index: int) -> Row:
    truth = boxed_answer(item["solution"])
    if not truth:
        raise DataError(
            f"MATH {split}, row {index}: the solution has no \\boxed{{}} answer: {item['solution'][-80:]!r}"
        )
    return {
        "data_source": DATA_SOURCE,
        "prompt": [{"role": "user", "content": f"{item['problem']} {INSTRUCTION}"}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": truth},
        "extra_info": {"split": split, "index": index, "level": item.get("level"), "type": item.get("type")},
    }


def boxed_answer(solution: str) -> str | None:
    r"""What the last ``\boxed{...}`` (or ``\boxed 5``, ``\fbox{...}``) of a reference solution holds; None without
    one.
    """
    start = max(solution.rfind("\\boxed"), solution.rfind("\\fbox"))
    if start < 0:
        return None
    rest = solution[start:].split("boxed" if solution.startswith("\\boxed", start) else "fbox", 1)[1]
    if not rest.startswith("{"):
        return rest.strip().split("$")[0].split(" ")[0] or None
    depth = 0
    for i, character in enumerate(rest):
        depth += {"{": 1, "}": -1}.get(character, 0)
        if depth == 0:
            return rest[1:i].strip()
    return None
