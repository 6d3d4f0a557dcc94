"""GSM8K (openai/gsm8k): grade-school word problems whose answer is a number after ``####``."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from laurel.data.preprocess.source import read_split, write_split
from laurel.data.table import DataError, Row

DATA_SOURCE = "openai/gsm8k"
INSTRUCTION = 'Let\'s think step by step and output the final answer after "####".'
ANSWER = re.compile(r"####\s*(-?\$?[0-9][0-9.,]*)")


def write(local_save_dir: str | Path, local_dataset_path: str | Path | None = None) -> list[Path]:
    """Write train.parquet and test.parquet. Raises DataError when the data set can be neither read nor fetched."""
    paths = []
    for split in ("train", "test"):
        raw = read_split(
            split,
            local_dataset_path=local_dataset_path,
            hub_id=DATA_SOURCE,
            hub_name="main",
            required=["question", "answer"],
        )
        paths.append(write_split([_row(item, split, i) for i, item in enumerate(raw)], local_save_dir, split))
    return paths


def _row(item: dict[str, Any], split: str, index: int) -> Row:
    found = ANSWER.findall(item["answer"])
    if not found:
        raise DataError(f"gsm8k {split}, row {index}: the answer has no number after '####': {item['answer']!r}")
    return {
        "data_source": DATA_SOURCE,
        "prompt": [{"role": "user", "content": f"{item['question']} {INSTRUCTION}"}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": found[-1].replace(",", "").replace("$", "").rstrip(".")},
        "extra_info": {"split": split, "index": index, "answer": item["answer"], "question": item["question"]},
    }
