from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from laurel.tracking.samples import samples_of, write_rollout_samples, write_validation_samples
from laurel.types import Group, Prompt, Score, Trajectory


def group(score: Score | None = None) -> Group:
    messages = ({"role": "system", "content": "Be brief."}, {"role": "user", "content": "1+2="})
    prompt = Prompt(7, (1, 2), messages, "arithmetic", 3)
    return Group(prompt, (Trajectory(1, (), "length", 0, score, text="3"),))


def test_samples_of_groups() -> None:
    (sample,) = samples_of([group(Score(0.5, {"format": 1.0}))])
    assert (sample.index, sample.sample, sample.prompt, sample.response) == (7, 1, "Be brief.\n1+2=", "3")
    assert (sample.ground_truth, sample.score, sample.finish_reason) == ("3", 0.5, "length")
    assert dict(sample.extras) == {"format": 1.0}


def test_a_trajectory_without_score_is_named() -> None:
    with pytest.raises(ValueError, match="trajectory 7/1"):
        samples_of([group()])


def test_validation_samples_read_back(tmp_path: Path, sample) -> None:
    rows = [sample(0, extras={"format": 1.0}), sample(1, score=0.0, response='"ü\n|', finish_reason="length")]
    path = write_validation_samples(tmp_path / "validation", 5, rows)
    assert path == tmp_path / "validation" / "step_5.parquet"
    table = pq.read_table(path).to_pylist()
    assert [row["step"] for row in table] == [5, 5]
    assert [row["response"] for row in table] == ["1", '"ü\n|']
    assert [row["extras.format"] for row in table] == [1.0, None]
    assert [row["finish_reason"] for row in table] == ["stop", "length"]
    assert [file.name for file in path.parent.iterdir()] == ["step_5.parquet"]


def test_rollout_samples_read_back(tmp_path: Path, sample) -> None:
    path = write_rollout_samples(tmp_path, 3, [sample(0, extras={"format": 1.0}), sample(1)])
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert path.name == "3.jsonl"
    assert [(row["step"], row["prompt"]) for row in rows] == [(3, "0+1="), (3, "1+1=")]
    assert [row["extras"] for row in rows] == [{"format": 1.0}, {}]
