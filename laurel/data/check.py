"""What can be wrong with the data settings and files, found without reading more than it takes."""

from __future__ import annotations

from collections.abc import Sequence

from laurel.config.tree import Config
from laurel.data.table import DataError, column_names, column_values, count_rows
from laurel.types import Problem


def check(config: Config) -> list[Problem]:
    """Problems of data.*: files that are missing or unreadable, absent columns, a batch larger than the data."""
    data = config.data
    problems: list[Problem] = []
    if not data.train_files and not config.trainer.val_only:
        problems.append(Problem("data.train_files", [], "give a parquet, json or jsonl file with training prompts"))
    if not data.val_files and config.trainer.val_only:
        problems.append(Problem("data.val_files", [], "trainer.val_only=True needs a file with validation prompts"))
    for field, limit in (("train_max_samples", data.train_max_samples), ("val_max_samples", data.val_max_samples)):
        if limit == 0 or limit < -1:
            problems.append(Problem(f"data.{field}", limit, "use -1 for all rows, or a number of at least 1"))
    train = _check_files(config, "data.train_files", data.train_files)
    problems += train + _check_files(config, "data.val_files", data.val_files)
    if not train and data.train_files and not config.trainer.val_only:
        problems += _check_batch(config)
    return problems


def data_sources(config: Config) -> dict[str, str]:
    """Each data source of the files and the first file that has it; files that cannot be read are left to ``check``."""
    found: dict[str, str] = {}
    for file in (*config.data.train_files, *config.data.val_files):
        try:
            values = column_values(file, config.data.reward_fn_key)
        except DataError:
            continue
        for value in values:
            if isinstance(value, str):
                found.setdefault(value, file)
    return found


def _check_files(config: Config, field: str, files: Sequence[str]) -> list[Problem]:
    problems = []
    for file in files:
        try:
            found = column_names(file)
            rows = count_rows(file)
        except DataError as error:
            problems.append(Problem(field, file, str(error)))
            continue
        if rows == 0:
            problems.append(Problem(field, file, "the file holds no rows"))
            continue
        for column, key in (
            (config.data.prompt_key, "data.prompt_key"),
            (config.data.reward_fn_key, "data.reward_fn_key"),
        ):
            if column not in found:
                problems.append(
                    Problem(field, file, f"no column {column!r} ({key}); its columns are {', '.join(found)}")
                )
        if "reward_model" not in found:
            cure = f"no column 'reward_model' with {{style, ground_truth}}; its columns are {', '.join(found)}"
            problems.append(Problem(field, file, cure))
    return problems


def _check_batch(config: Config) -> list[Problem]:
    data = config.data
    rows = sum(count_rows(file) for file in data.train_files)
    if data.train_max_samples > 0:
        rows = min(rows, data.train_max_samples)
    cure = f"there are only {rows} training rows; use at most {rows}, or give more data"
    if data.train_batch_size > rows:
        return [Problem("data.train_batch_size", data.train_batch_size, cure)]
    return [Problem("data.gen_batch_size", config.prompts_at_once, cure)] if config.prompts_at_once > rows else []
