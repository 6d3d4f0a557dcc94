"""Rows of parquet, json and jsonl files, in file order, with errors that name file, column and row."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from laurel.types import LaurelError

SUFFIXES = (".parquet", ".json", ".jsonl")
Row = dict[str, Any]


class DataError(LaurelError):
    """A data file that cannot be used."""


def resolve(file: str) -> Path:
    """The path of an existing data file. Raises DataError for a missing file, a folder, or a suffix that is not
    read.
    """
    path = Path(file).expanduser()
    if "://" in file:
        raise DataError(f"data file {file!r} is remote; copy it to a disk that every node can read and give that path")
    if path.suffix not in SUFFIXES:
        raise DataError(f"data file {file!r} ends in {path.suffix!r}; {', '.join(SUFFIXES)} are read")
    if path.is_dir():
        raise DataError(f"data file {file!r} is a folder; give the file inside it")
    if not path.exists():
        raise DataError(f"data file {file!r} does not exist")
    return path


def column_names(file: str) -> tuple[str, ...]:
    """The columns of a file; of json and jsonl, the keys of its first row. Raises DataError."""
    path = resolve(file)
    if path.suffix == ".parquet":
        return tuple(_open_parquet(path).schema_arrow.names)
    return tuple(next(_json_rows(path), {}))


def count_rows(file: str) -> int:
    """The number of rows of a file. Raises DataError."""
    path = resolve(file)
    if path.suffix == ".parquet":
        return int(_open_parquet(path).metadata.num_rows)
    if _is_list(path):
        return sum(1 for _ in _json_rows(path))
    with path.open("rb") as lines:
        return sum(1 for line in lines if line.strip())


def read_rows(file: str, *, required: Sequence[str], optional: Sequence[str] = (), limit: int = -1) -> list[Row]:
    """The first ``limit`` rows (-1: all) as dicts that hold every required column; absent optional ones are left out.

    Raises DataError naming the file and the column or the row.
    """
    path = resolve(file)
    if path.suffix == ".parquet":
        return _parquet_rows(path, required=required, optional=optional, limit=limit)
    rows: list[Row] = []
    wanted = {*required, *optional}
    for number, row in enumerate(_json_rows(path)):
        if number == limit:
            break
        _require(file, required, tuple(row), row=number)
        rows.append({name: row[name] for name in row if name in wanted})
    return rows


def column_values(file: str, column: str) -> set[Any]:
    """The different values of one column. Raises DataError."""
    path = resolve(file)
    if path.suffix == ".parquet":
        _require(file, [column], column_names(file))
        values = _open_parquet(path).read(columns=[column]).column(column)
        return set(values.unique().to_pylist())
    return {row[column] for row in read_rows(file, required=[column])}


def _parquet_rows(path: Path, *, required: Sequence[str], optional: Sequence[str], limit: int) -> list[Row]:
    import pyarrow

    file = _open_parquet(path)
    found = tuple(file.schema_arrow.names)
    _require(str(path), required, found)
    columns = [name for name in (*required, *optional) if name in found]
    rows: list[Row] = []
    try:
        for batch in file.iter_batches(batch_size=4096, columns=columns):
            rows += batch.to_pylist()
            if 0 <= limit <= len(rows):
                return rows[:limit]
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{path}, after row {len(rows)}: {error}; the file is damaged, write it again") from error
    return rows


def _open_parquet(path: Path) -> Any:
    import pyarrow
    import pyarrow.parquet

    try:
        return pyarrow.parquet.ParquetFile(path)
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{path} cannot be read as parquet ({error}); write it again") from error


def _is_list(path: Path) -> bool:
    """True if a json file is one list of objects; False if it has an object on each line."""
    with path.open("rb") as file:
        return path.suffix == ".json" and file.read(4096).lstrip()[:1] == b"["


def _json_rows(path: Path) -> Iterator[Row]:
    """Objects of a json list, or of json lines; blank lines are skipped."""
    try:
        if _is_list(path):
            yield from (_as_object(path, i, row) for i, row in enumerate(json.loads(path.read_text(encoding="utf-8"))))
            return
        number = 0
        with path.open(encoding="utf-8") as lines:
            for line_number, line in enumerate(lines, 1):
                if line.strip():
                    yield _as_object(path, number, _parse(path, line_number, line))
                    number += 1
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 text ({error})") from error
    except (json.JSONDecodeError, OSError) as error:
        raise DataError(f"{path} cannot be read as json ({error})") from error


def _parse(path: Path, line_number: int, line: str) -> Any:
    try:
        return json.loads(line)
    except json.JSONDecodeError as error:
        hint = "; a json file is a list of objects, or one object on each line" if path.suffix == ".json" else ""
        raise DataError(f"{path}, line {line_number} is not valid json ({error}){hint}") from error


def _as_object(path: Path, number: int, row: Any) -> Row:
    if not isinstance(row, dict):
        raise DataError(
            f"{path}, row {number} is a {type(row).__name__}; each row must be an object with named columns"
        )
    return row


def _require(file: str, required: Sequence[str], found: Sequence[str], *, row: int | None = None) -> None:
    missing = [name for name in required if name not in found]
    if missing:
        place = file if row is None else f"{file}, row {row}"
        raise DataError(f"{place} has no column {missing[0]!r}; its columns are {', '.join(found) or '(none)'}")
