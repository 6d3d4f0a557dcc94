from __future__ import annotations

import json
import subprocess
import sys
import time

import pyarrow
import pyarrow.parquet
import pytest

from laurel.config.tree import Config
from laurel.data.check import check, data_sources

ROW = {
    "data_source": "openai/gsm8k",
    "prompt": [{"role": "user", "content": "a"}],
    "ability": "math",
    "reward_model": {"style": "rule", "ground_truth": "1"},
    "extra_info": {"index": 0},
}


def write(path, rows):
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return str(path)


@pytest.fixture
def file(tmp_path):
    return write(tmp_path / "train.parquet", [ROW] * 4)


def config(files, *, val=(), trainer=None, algorithm=None, **data):
    return Config.model_validate(
        {
            "data": {"train_files": list(files), "val_files": list(val), "train_batch_size": 4, **data},
            "trainer": trainer or {},
            "algorithm": algorithm or {},
        }
    )


def test_good_files_have_no_problems(file):
    assert check(config([file], val=[file])) == []


def test_all_problems_of_all_files_are_found_at_once(file, tmp_path):
    bare = write(tmp_path / "bare.parquet", [{"question": "x"}])
    problems = check(config(["absent.parquet", file], val=[bare, "v.csv"]))
    assert [(p.field, p.value) for p in problems] == [
        ("data.train_files", "absent.parquet"),
        ("data.val_files", bare),
        ("data.val_files", bare),
        ("data.val_files", bare),
        ("data.val_files", "v.csv"),
    ]
    assert "does not exist" in problems[0].cure
    assert problems[1].cure == "no column 'prompt' (data.prompt_key); its columns are question"
    assert problems[2].cure.startswith("no column 'data_source' (data.reward_fn_key)")
    assert problems[3].cure.startswith("no column 'reward_model'")


def test_a_batch_larger_than_the_data_is_found(file):
    (problem,) = check(config([file, file], train_batch_size=9))
    assert (problem.field, problem.value) == ("data.train_batch_size", 9)
    assert "only 8 training rows; use at most 8" in problem.cure
    assert check(config([file, file], train_batch_size=8)) == []
    (problem,) = check(config([file, file], train_batch_size=8, train_max_samples=5))
    assert "only 5 training rows" in problem.cure


def test_no_files_and_no_rows(tmp_path, file):
    assert [p.field for p in check(config([]))] == ["data.train_files"]
    assert check(config([], val=[file], trainer={"val_only": True})) == []
    assert [p.field for p in check(config([], trainer={"val_only": True}))] == ["data.val_files"]
    empty = tmp_path / "empty.jsonl"
    empty.write_text("\n")
    assert [p.cure for p in check(config([str(empty)]))] == ["the file holds no rows"]
    assert [p.field for p in check(config([file], train_max_samples=0))] == ["data.train_max_samples"]


def test_a_generation_batch_larger_than_the_data_is_found(tmp_path):
    file = write(tmp_path / "rows.parquet", [ROW] * 5)
    filters = {"filter_groups": {"enable": True}}
    (problem,) = check(config([file], train_batch_size=2, gen_batch_size=6, algorithm=filters))
    assert (problem.field, problem.value) == ("data.gen_batch_size", 6)
    assert "only 5 training rows; use at most 5" in problem.cure
    assert check(config([file], train_batch_size=2, gen_batch_size=5, algorithm=filters)) == []


def test_data_sources_names_the_first_file_that_has_each(tmp_path, file):
    other = tmp_path / "other.jsonl"
    other.write_text("\n".join(json.dumps({**ROW, "data_source": name}) for name in ("aime24", "openai/gsm8k")))
    assert data_sources(config([file, str(other)], val=["absent.parquet"])) == {
        "openai/gsm8k": file,
        "aime24": str(other),
    }


def test_a_large_file_is_checked_within_a_second(tmp_path):
    file = write(tmp_path / "large.parquet", [ROW] * 100_000)
    start = time.monotonic()
    assert check(config([file])) == []
    assert data_sources(config([file])) == {"openai/gsm8k": file}
    assert time.monotonic() - start < 1.0


def test_checks_import_nothing_heavy():
    code = (
        "import sys, laurel.data.check, laurel.rewards.check, laurel.rewards.sources;"
        "print([m for m in ('torch', 'transformers', 'ray', 'datasets', 'math_verify', 'sympy') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
