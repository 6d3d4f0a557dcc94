"""Questions and answers kept for people: every validation as parquet, training samples as jsonl."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from laurel.types import Group, Prompt


@dataclass(frozen=True)
class Sample:
    """One scored trajectory as text. ``index`` and ``sample`` are its prompt's row and its place in the group.

    ``question`` is the last message of the prompt, which is what a person wants to see of a few-shot prompt.
    ``unscored`` says why there is no score, which is NaN then.
    """

    index: int
    sample: int
    data_source: str
    prompt: str
    response: str
    ground_truth: str
    score: float
    finish_reason: str
    extras: Mapping[str, float] = field(default_factory=dict)
    question: str = ""
    unscored: str = ""


def samples_of(groups: Sequence[Group]) -> list[Sample]:
    """Every trajectory of ``groups``, in order. A trajectory that was not scored is an error."""
    samples = []
    for group in groups:
        for trajectory in group.trajectories:
            score, unscored = trajectory.score, trajectory.unscored
            if score is None and unscored is None:
                raise ValueError(f"trajectory {group.prompt.index}/{trajectory.sample} (prompt/sample) has no score")
            samples.append(
                Sample(
                    index=group.prompt.index,
                    sample=trajectory.sample,
                    data_source=group.prompt.data_source,
                    prompt=prompt_text(group.prompt),
                    response=trajectory.text,
                    ground_truth=_text(group.prompt.ground_truth),
                    score=math.nan if score is None else score.value,
                    finish_reason=trajectory.finish_reason,
                    extras={} if score is None else score.extras,
                    question=_text(group.prompt.messages[-1]["content"]) if group.prompt.messages else "",
                    unscored="" if unscored is None else unscored.reason,
                )
            )
    return samples


def prompt_text(prompt: Prompt) -> str:
    """What a person reads as the question: the contents of the messages, a line each."""
    return "\n".join(_text(message["content"]) for message in prompt.messages)


def validation_samples(folder: Path, step: int) -> Path:
    """Where the samples of a validation lie."""
    return folder / f"step_{step}.parquet"


def write_validation_samples(folder: Path, step: int, samples: Sequence[Sample]) -> Path:
    """``folder/step_<step>.parquet``, a row per sample, replaced at once.

    Columns: step, index, sample, data_source, prompt, response, ground_truth, score (null where there is none),
    finish_reason, unscored (why there is none), and ``extras.<name>`` for each further number of the reward function
    (null where a sample has none).
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    names = sorted({name for sample in samples for name in sample.extras})
    plain = ("index", "sample", "data_source", "prompt", "response", "ground_truth", "finish_reason", "unscored")
    columns: dict[str, Any] = {"step": pa.array([step] * len(samples), pa.int64())}
    for name in plain:
        columns[name] = [getattr(sample, name) for sample in samples]
    columns["score"] = pa.array([_number(sample.score) for sample in samples], pa.float64())
    for name in names:
        columns[f"extras.{name}"] = pa.array([sample.extras.get(name) for sample in samples], pa.float64())
    folder.mkdir(parents=True, exist_ok=True)
    path = validation_samples(folder, step)
    partial = path.with_suffix(".parquet.tmp")
    pq.write_table(pa.table(columns), partial)
    os.replace(partial, path)
    return path


def write_rollout_samples(folder: Path, step: int, samples: Sequence[Sample]) -> Path:
    """``folder/<step>.jsonl``, an object per line, replaced at once."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{step}.jsonl"
    partial = path.with_suffix(".jsonl.tmp")
    with partial.open("w", encoding="utf-8") as file:
        for sample in samples:
            row = {"step": step} | asdict(sample) | {"score": _number(sample.score), "extras": dict(sample.extras)}
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
    os.replace(partial, path)
    return path


def _number(score: float) -> float | None:
    return None if math.isnan(score) else score


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
