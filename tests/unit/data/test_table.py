from __future__ import annotations

import json
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from laurel.data.table import DataError, column_names, column_values, count_rows, read_rows, resolve

ROWS = [{"prompt": f"p{i}", "data_source": "a" if i < 2 else "b", "extra": i} for i in range(5)]


def write(path: Path, rows: list[dict]) -> str:
    if path.suffix == ".parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    elif path.suffix == ".json":
        path.write_text(json.dumps(rows))
    else:
        path.write_text("\n".join(json.dumps(row) for row in rows) + "\n\n")
    return str(path)


@pytest.mark.parametrize("suffix", [".parquet", ".json", ".jsonl"])
def test_reads_rows_in_file_order(tmp_path, suffix):
    file = write(tmp_path / f"data{suffix}", ROWS)
    assert read_rows(file, required=["prompt"], optional=["extra", "absent"]) == [
        {"prompt": f"p{i}", "extra": i} for i in range(5)
    ]
    assert read_rows(file, required=["prompt"], limit=2) == [{"prompt": "p0"}, {"prompt": "p1"}]
    assert count_rows(file) == 5
    assert column_names(file) == ("prompt", "data_source", "extra")
    assert column_values(file, "data_source") == {"a", "b"}


def test_a_json_file_may_hold_an_object_on_each_line(tmp_path):
    path = tmp_path / "data.json"
    path.write_text('{"prompt": "x"}\n{"prompt": "y"}\n')
    assert read_rows(str(path), required=["prompt"]) == [{"prompt": "x"}, {"prompt": "y"}]
    assert count_rows(str(path)) == 2


@pytest.mark.parametrize("suffix", [".parquet", ".json", ".jsonl"])
def test_a_missing_column_is_named_with_the_file_and_the_columns_found(tmp_path, suffix):
    file = write(tmp_path / f"data{suffix}", ROWS)
    with pytest.raises(DataError) as error:
        read_rows(file, required=["prompt", "reward_model"])
    assert file in str(error.value)
    assert "no column 'reward_model'; its columns are prompt, data_source, extra" in str(error.value)


def test_a_column_missing_in_one_json_row_names_the_row(tmp_path):
    file = write(tmp_path / "data.jsonl", [{"prompt": "x"}, {"prompt": "y"}, {"question": "z"}])
    with pytest.raises(DataError, match=r"data\.jsonl, row 2 has no column 'prompt'; its columns are question"):
        read_rows(file, required=["prompt"])


def test_bad_json_names_the_line(tmp_path):
    path = tmp_path / "data.jsonl"
    path.write_text('{"prompt": "x"}\n{"prompt": \n')
    with pytest.raises(DataError, match=r"data\.jsonl, line 2 is not valid json"):
        read_rows(str(path), required=["prompt"])
    path.write_text('{"prompt": "x"}\n[1]\n')
    with pytest.raises(DataError, match=r"row 1 is a list; each row must be an object"):
        read_rows(str(path), required=["prompt"])


def test_a_parquet_file_that_is_none_is_said_so(tmp_path):
    path = tmp_path / "data.parquet"
    path.write_text("hello")
    with pytest.raises(DataError, match="cannot be read as parquet"):
        count_rows(str(path))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("absent.parquet", "does not exist"),
        ("data.csv", r"ends in '\.csv'; \.parquet, \.json, \.jsonl are read"),
        ("folder.json", "is a folder"),
    ],
)
def test_a_file_that_cannot_be_used(tmp_path, name, message):
    (tmp_path / "folder.json").mkdir()
    (tmp_path / "data.csv").write_text("a,b")
    with pytest.raises(DataError, match=message):
        resolve(str(tmp_path / name))


def test_a_remote_file_is_refused_with_the_cure():
    with pytest.raises(DataError, match="copy it to a disk"):
        resolve("hdfs://user/train.parquet")
