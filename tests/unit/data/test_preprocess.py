from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from laurel.data.preprocess import arithmetic, gsm8k, math_dataset
from laurel.data.preprocess.source import find_files
from laurel.data.table import DataError

COLUMNS = ["data_source", "prompt", "ability", "reward_model", "extra_info"]
GSM8K = [
    {"question": "Tom has 3 and 4?", "answer": "3+4=<<3+4=7>>7\n#### 7"},
    {"question": "How much?", "answer": "It is #### much\n#### -1,234"},
]
MATH = [
    {"problem": "Half?", "solution": "So $\\boxed{\\frac{1}{2}}$.", "level": "Level 1", "type": "Algebra"},
    {"problem": "Five?", "solution": "First \\boxed{4}, no: $\\boxed 5$.", "level": "Level 2", "type": "Algebra"},
]


def read(path):
    return pyarrow.parquet.read_table(path)


def save_jsonl(folder: Path, rows):
    folder.mkdir(parents=True)
    for split in ("train", "test"):
        (folder / f"{split}.jsonl").write_text("\n".join(json.dumps(row) for row in rows))


def save_parquet(folder: Path, rows):
    (folder / "main").mkdir(parents=True)
    (folder / "socratic").mkdir()
    for split in ("train", "test"):
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), folder / f"main/{split}-00000-of-00001.parquet")
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows * 2), folder / f"socratic/{split}-0.parquet")


def save_to_disk(folder: Path, rows):
    """The layout of datasets.DatasetDict.save_to_disk."""
    for split in ("train", "test"):
        (folder / split).mkdir(parents=True)
        table = pyarrow.Table.from_pylist(rows)
        with pyarrow.ipc.new_stream(folder / split / "data-00000-of-00001.arrow", table.schema) as stream:
            stream.write_table(table)
        (folder / split / "state.json").write_text("{}")
        (folder / split / "dataset_info.json").write_text("{}")
    (folder / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')


@pytest.mark.parametrize("save", [save_jsonl, save_parquet, save_to_disk])
def test_gsm8k_from_a_local_folder(tmp_path, save):
    save(tmp_path / "in", GSM8K)
    paths = gsm8k.write(tmp_path / "out", tmp_path / "in")
    assert [p.name for p in paths] == ["train.parquet", "test.parquet"]
    assert read(paths[0]).column_names == COLUMNS
    rows = read(paths[1]).to_pylist()
    assert len(rows) == 2
    assert rows[0] == {
        "data_source": "openai/gsm8k",
        "prompt": [
            {
                "role": "user",
                "content": 'Tom has 3 and 4? Let\'s think step by step and output the final answer after "####".',
            }
        ],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": "7"},
        "extra_info": {"split": "test", "index": 0, **{k: GSM8K[0][k] for k in ("answer", "question")}},
    }
    assert rows[1]["reward_model"]["ground_truth"] == "-1234"
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["test.parquet", "train.parquet"]


def test_a_folder_that_datasets_wrote_is_read(tmp_path):
    datasets = pytest.importorskip("datasets", reason="the package datasets is not installed")
    splits = {split: datasets.Dataset.from_list(GSM8K) for split in ("train", "test")}
    datasets.DatasetDict(splits).save_to_disk(str(tmp_path / "in"))
    paths = gsm8k.write(tmp_path / "out", tmp_path / "in")
    assert [r["reward_model"]["ground_truth"] for r in read(paths[0]).to_pylist()] == ["7", "-1234"]


def test_gsm8k_without_a_final_answer_names_the_row(tmp_path):
    save_jsonl(tmp_path / "in", [*GSM8K, {"question": "q", "answer": "7"}])
    with pytest.raises(DataError, match=r"gsm8k train, row 2: the answer has no number after '####'"):
        gsm8k.write(tmp_path / "out", tmp_path / "in")


def test_math_from_a_local_folder(tmp_path):
    save_jsonl(tmp_path / "in", MATH)
    rows = read(math_dataset.write(tmp_path / "out", tmp_path / "in")[0]).to_pylist()
    assert list(rows[0]) == COLUMNS
    assert [r["reward_model"]["ground_truth"] for r in rows] == ["\\frac{1}{2}", "5"]
    assert rows[0]["prompt"][0]["content"].endswith("output the final answer within \\boxed{}.")
    assert rows[1]["extra_info"] == {"split": "train", "index": 1, "level": "Level 2", "type": "Algebra"}
    assert rows[0]["data_source"] == "DigitalLearningGmbH/MATH-lighteval"


@pytest.mark.parametrize(
    ("solution", "answer"),
    [
        ("\\boxed{a{b}c} end", "a{b}c"),
        ("\\fbox{3}", "3"),
        ("\\boxed{1} then \\boxed{2}", "2"),
        ("\\boxed 7", "7"),
        ("no box", None),
        ("\\boxed{open", None),
    ],
)
def test_boxed_answer(solution, answer):
    assert math_dataset.boxed_answer(solution) == answer


def test_a_local_folder_without_the_split_says_what_was_expected(tmp_path):
    (tmp_path / "train.jsonl").write_text("{}")
    with pytest.raises(DataError, match=r"holds no file of split 'test'; expected test\.parquet"):
        find_files(tmp_path, "test", prefer=None)
    with pytest.raises(DataError, match="is no folder"):
        find_files(tmp_path / "absent", "test", prefer=None)


def test_a_missing_column_is_named(tmp_path):
    save_jsonl(tmp_path / "in", [{"q": 1}])
    with pytest.raises(DataError, match=r"row 0 has no 'question'; its columns are q"):
        gsm8k.write(tmp_path / "out", tmp_path / "in")


def test_without_the_hub_the_script_fails_fast_with_the_cure(tmp_path):
    environment = {"HF_ENDPOINT": "http://127.0.0.1:9", "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    script = Path(__file__).parents[3] / "examples/data_preprocess/gsm8k.py"
    start = time.monotonic()
    run = subprocess.run(
        [sys.executable, str(script), "--local_save_dir", str(tmp_path / "out")],
        env={**environment, "PYTHONPATH": str(script.parents[2])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 1
    assert run.stderr.startswith("error: the Hugging Face hub cannot be reached, so openai/gsm8k cannot be fetched;")
    assert "--local_dataset_path DIR" in run.stderr
    assert time.monotonic() - start < 10


def test_the_scripts_write_both_files(tmp_path):
    for script, rows in (("gsm8k", GSM8K), ("math_dataset", MATH)):
        save_jsonl(tmp_path / script, rows)
        path = Path(__file__).parents[3] / f"examples/data_preprocess/{script}.py"
        run = subprocess.run(
            [
                sys.executable,
                str(path),
                "--local_dir",
                str(tmp_path / "out"),
                "--local_dataset_path",
                str(tmp_path / script),
            ],
            env={"PYTHONPATH": str(path.parents[2]), "PATH": "/usr/bin:/bin"},
            capture_output=True,
            text=True,
            check=True,
        )
        assert run.stdout.split() == [str(tmp_path / "out" / f"{split}.parquet") for split in ("train", "test")]


# ---- arithmetic


def test_arithmetic_rows(tmp_path):
    train, test = (read(p) for p in arithmetic.write(tmp_path))
    assert train.column_names == COLUMNS
    assert test.num_rows == 200
    assert train.num_rows == 2 * (465 - 2 - 200) - len(set(train_diagonal(train)))
    row = train.to_pylist()[0]
    info = row["extra_info"]
    assert row["prompt"] == [
        {"role": "user", "content": "2 + 3 ="},
        {"role": "assistant", "content": "5"},
        {"role": "user", "content": "9 + 4 ="},
        {"role": "assistant", "content": "13"},
        {"role": "user", "content": f"{info['a']} + {info['b']} ="},
    ]
    for row in (*train.to_pylist(), *test.to_pylist()):
        a, b = row["extra_info"]["a"], row["extra_info"]["b"]
        assert row["reward_model"]["ground_truth"] == str(a + b)
        assert 1 <= a <= 30
        assert 1 <= b <= 30
        assert row["data_source"] == "laurel/arithmetic"


def test_arithmetic_without_spaces(tmp_path):
    rows = read(arithmetic.write(tmp_path, examples=[(2, 3)], spaced=False)[1]).to_pylist()
    info = rows[0]["extra_info"]
    assert [m["content"] for m in rows[0]["prompt"]] == ["2+3=", "5", f"{info['a']}+{info['b']}="]


def train_diagonal(table):
    return [(r["a"], r["b"]) for r in table.column("extra_info").to_pylist() if r["a"] == r["b"]]


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_arithmetic_validation_is_never_trained_on(seed):
    train, val = arithmetic.make_problems(lowest=1, highest=30, train_size=-1, val_size=200, seed=seed)

    def unordered(pairs):
        return {frozenset(pair) for pair in pairs}

    assert len(unordered(val)) == 200
    assert unordered(train).isdisjoint(unordered(val))
    assert unordered(train).isdisjoint(unordered(arithmetic.EXAMPLES))
    assert unordered(val).isdisjoint(unordered(arithmetic.EXAMPLES))
    assert len(set(train)) == len(train)
    assert {(b, a) for a, b in train} == set(train)


def test_arithmetic_depends_on_its_seed_alone():
    settings = {"lowest": 1, "highest": 30, "train_size": 50, "val_size": 200}
    first = arithmetic.make_problems(**settings, seed=1)
    assert first == arithmetic.make_problems(**settings, seed=1)
    assert first != arithmetic.make_problems(**settings, seed=2)
    assert len(first[0]) == 50


def test_arithmetic_ranges_that_are_too_small_say_so():
    with pytest.raises(DataError, match=r"from 1 to 5 make 14 different pairs, too few to hold out val_size=200"):
        arithmetic.make_problems(lowest=1, highest=5, train_size=-1, val_size=200, seed=1)
    with pytest.raises(DataError, match=r"train_size=9999 is more than the \d+ problems"):
        arithmetic.make_problems(lowest=1, highest=30, train_size=9999, val_size=200, seed=1)
