"""Where raw rows come from: a local folder in any of the usual layouts, or the Hugging Face hub."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from laurel.data.table import DataError, Row, column_names, read_rows
from laurel.models.hub import hub_answers

SUFFIXES = (".parquet", ".jsonl", ".json", ".arrow")


def read_split(
    split: str, *, local_dataset_path: str | Path | None, hub_id: str, hub_name: str | None, required: Sequence[str]
) -> list[Row]:
    """All raw rows of ``split`` ("train" or "test"), from the local folder if one is given, else from the hub.

    A local folder may be a clone of the hub's repository, the output of ``save_to_disk``, or hold files named after the
    split: train.parquet, test.jsonl, main/train-00000-of-00001.parquet, train/data-00000-of-00001.arrow. Raises
    DataError.
    """
    if local_dataset_path is None:
        rows = _read_hub(split, hub_id=hub_id, hub_name=hub_name)
        place = f"{hub_id} ({split})"
    else:
        files = find_files(Path(local_dataset_path).expanduser(), split, prefer=hub_name)
        rows = [row for file in files for row in _read_file(file)]
        place = f"{local_dataset_path} ({split})"
    if not rows:
        raise DataError(f"{place} holds no rows")
    for number, row in enumerate(rows):
        missing = [column for column in required if row.get(column) is None]
        if missing:
            raise DataError(f"{place}, row {number} has no {missing[0]!r}; its columns are {', '.join(row)}")
    return rows


def find_files(folder: Path, split: str, *, prefer: str | None) -> list[Path]:
    """The files of one split under ``folder``, sorted; those below a subfolder ``prefer`` win. Raises DataError for
    none.
    """
    if not folder.is_dir():
        raise DataError(
            f"local_dataset_path={str(folder)!r} is no folder; give the folder that holds the data set's files"
        )
    root = folder / prefer if prefer is not None and (folder / prefer).is_dir() else folder
    found = sorted(
        file for file in root.rglob("*") if file.suffix in SUFFIXES and _is_of_split(file.relative_to(root), split)
    )
    if not found:
        raise DataError(
            f"{folder} holds no file of split {split!r}; expected {split}.parquet, {split}.jsonl, {split}-*.parquet, "
            f"or a folder {split}/ with such files"
        )
    best = next(suffix for suffix in SUFFIXES if any(file.suffix == suffix for file in found))
    return [file for file in found if file.suffix == best]  # the same rows in two formats are read once


def _is_of_split(path: Path, split: str) -> bool:
    if path.name in ("dataset_info.json", "state.json", "dataset_dict.json"):  # what save_to_disk says about its files
        return False
    stem = path.name.split(".")[0]
    return stem == split or stem.startswith((f"{split}-", f"{split}_")) or split in path.parts[:-1]


def _read_file(file: Path) -> list[Row]:
    if file.suffix != ".arrow":
        return read_rows(str(file), required=[], optional=column_names(str(file)))
    import pyarrow

    try:
        with pyarrow.memory_map(str(file)) as content:
            table: Any = pyarrow.ipc.open_stream(content).read_all()
            return list(table.to_pylist())
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{file} cannot be read as an Arrow stream ({error})") from error


def _read_hub(split: str, *, hub_id: str, hub_name: str | None) -> list[Row]:
    cure = "download it elsewhere and give its folder with --local_dataset_path DIR"
    if "HF_HUB_OFFLINE" not in os.environ and not hub_answers():  # offline, datasets looks into its own cache
        raise DataError(f"the Hugging Face hub cannot be reached, so {hub_id} cannot be fetched; {cure}")
    try:
        import datasets
    except ImportError as error:
        raise DataError(f"fetching {hub_id} needs the package datasets; pip install datasets, or {cure}") from error
    try:
        return list(datasets.load_dataset(hub_id, hub_name, split=split).to_list())
    except Exception as error:  # the hub's client raises many kinds; the first line says which
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise DataError(f"{hub_id} could not be fetched from the Hugging Face hub ({reason}); {cure}") from error


def write_split(rows: Iterator[Row] | Sequence[Row], local_save_dir: str | Path, split: str) -> Path:
    """Write ``rows`` as ``<split>.parquet`` so that a reader sees the whole file or none; returns its path."""
    import pyarrow
    import pyarrow.parquet

    folder = Path(local_save_dir).expanduser()
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / f"{split}.parquet"
    handle, temporary = tempfile.mkstemp(prefix=f".{split}.", dir=folder)
    os.close(handle)
    try:
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(list(rows)), temporary)
        os.chmod(temporary, 0o644)
        os.replace(temporary, target)
    finally:
        Path(temporary).unlink(missing_ok=True)
    return target
