from __future__ import annotations

import io
import json
import logging
import re
from pathlib import Path
from typing import get_args

import pytest

from laurel.config.tree import LoggerName
from laurel.tracking import loggers
from laurel.tracking.loggers import ConsoleLogger, Loggers, build_loggers, flatten
from laurel.tracking.metrics import UndeclaredMetric


def rows_of(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_names_are_what_the_configuration_accepts() -> None:
    assert list(get_args(LoggerName)) == list(loggers.LOGGERS)


def test_console_line_without_a_terminal(config, tmp_path: Path) -> None:
    stream = io.StringIO()
    console = ConsoleLogger(config(), tmp_path, None, stream)
    console.log(3, {"actor/pg_loss": -0.01234, "critic/score/mean": 0.5, "timing_s/step": 12.34, "actor/lr": 1e-6})
    console.log(3, {"val-core/arithmetic/acc": 0.75})  # validations have a line of their own
    console.log(4, {"actor/lr": 1e-6})
    lines = [re.sub(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d ", "", line) for line in stream.getvalue().splitlines()]
    assert lines == ["step 3  score 0.500  loss -0.0123  s 12.3"]


def test_console_line_on_a_terminal_has_no_time(config, tmp_path: Path) -> None:
    stream = Terminal()
    ConsoleLogger(config(), tmp_path, None, stream).log(3, {"critic/score/mean": 0.5})
    plain = re.sub(r"\x1b\[[0-9;]*m", "", stream.getvalue())
    assert plain == "step 3  score 0.500\n"


def test_jsonl_holds_every_metric_and_null_for_nan(config, tmp_path: Path) -> None:
    built = build_loggers(config("file"), tmp_path / "run")
    built.log(1, {"actor/pg_loss": 0.25, "actor/grad_norm": float("nan")})
    built.close()
    (row,) = rows_of(tmp_path / "run" / "metrics.jsonl")
    assert row.pop("time") > 1.6e9
    assert row == {"step": 1, "actor/pg_loss": 0.25, "actor/grad_norm": None}


def test_resume_drops_later_lines_and_a_torn_one(config, tmp_path: Path) -> None:
    built = build_loggers(config("file"), tmp_path)
    for step in range(1, 6):
        built.log(step, {"actor/pg_loss": float(step)})
    built.close()
    path = tmp_path / "metrics.jsonl"
    path.write_text(path.read_text() + '{"step": 6, "actor/pg')

    resumed = build_loggers(config("file"), tmp_path, resumed_step=3)
    assert [row["step"] for row in rows_of(path)] == [1, 2, 3]
    resumed.log(4, {"actor/pg_loss": 40.0})
    resumed.close()
    assert [(row["step"], row["actor/pg_loss"]) for row in rows_of(path)] == [(1, 1), (2, 2), (3, 3), (4, 40)]
    (old,) = tmp_path.glob("metrics.previous-*.jsonl")
    assert "".join(old.read_text().splitlines(keepends=True)[3:5]).count('"step"') == 2, "what was cut off is kept"
    assert {file.name for file in tmp_path.iterdir()} == {"metrics.jsonl", old.name}


def test_a_new_run_keeps_the_log_of_an_old_one(config, tmp_path: Path) -> None:
    for value in (1.0, 2.0, 3.0):
        built = build_loggers(config("file"), tmp_path)
        built.log(1, {"actor/pg_loss": value})
        built.close()
    logs = {file.name: rows_of(file)[0]["actor/pg_loss"] for file in tmp_path.iterdir()}
    assert logs == {"metrics.previous-1.jsonl": 1.0, "metrics.previous-2.jsonl": 2.0, "metrics.jsonl": 3.0}


def test_tensorboard_values_read_back_and_later_steps_are_purged(config, tmp_path: Path, sample) -> None:
    event_accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    first = build_loggers(config("tensorboard", log_val_generations=1), tmp_path)
    for step in (1, 2, 3):
        first.log(step, {"critic/score/mean": step / 4})
    first.log_samples(3, [sample()])
    first.close()
    # Event files are read in the order of their names, which hold the second they were made in.
    for file in (tmp_path / "tensorboard").iterdir():
        file.rename(file.with_name(re.sub(r"tfevents\.\d+", "tfevents.1000000000", file.name)))
    second = build_loggers(config("tensorboard"), tmp_path, resumed_step=2)
    second.log(3, {"critic/score/mean": 9.0})
    second.close()
    events = event_accumulator.EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [(event.step, event.value) for event in events.Scalars("critic/score/mean")] == [
        (1, 0.25),
        (2, 0.5),
        (3, 9.0),
    ]


def test_wandb_offline_goes_on_in_the_same_run(config, tmp_path: Path, sample, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    settings = config("wandb", project_name="p", experiment_name="e", log_val_generations=1)
    first = build_loggers(settings, tmp_path)
    first.log(1, {"critic/score/mean": 0.5})
    first.log_samples(1, [sample()])
    first.close()
    run_id = (tmp_path / "wandb_run_id").read_text().strip()
    second = build_loggers(settings, tmp_path, resumed_step=1)
    assert second._loggers["wandb"]._run.id == run_id
    second.close()
    runs = [path for path in (tmp_path / "wandb").iterdir() if path.name.startswith("offline-run-")]
    assert runs
    assert all(path.name.endswith(f"-{run_id}") for path in runs)
    assert any(path.stat().st_size > 0 for path in (tmp_path / "wandb").rglob(f"run-{run_id}.wandb"))
    third = build_loggers(settings, tmp_path)
    third.close()
    assert (tmp_path / "wandb_run_id").read_text().strip() != run_id
    assert first._failures == second._failures == third._failures == {}


def test_mlflow_values_read_back_in_one_run(config, tmp_path: Path, sample, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    pytest.importorskip("sqlalchemy")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    settings = config("mlflow", project_name="p", experiment_name="e", log_val_generations=1)
    first = build_loggers(settings, tmp_path)
    first.log(1, {"critic/score/mean": 0.5, "val-core/a/acc/mean@1": 0.25})
    first.log_samples(1, [sample()])
    first.close()
    second = build_loggers(settings, tmp_path, resumed_step=1)
    second.log(2, {"critic/score/mean": 0.75})
    second.close()
    assert first._failures == second._failures == {}

    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{tmp_path}/mlflow.db")
    experiment = client.get_experiment_by_name("p").experiment_id
    (run,) = client.search_runs([experiment])
    assert run.info.status == "FINISHED"
    assert [(m.step, m.value) for m in client.get_metric_history(run.info.run_id, "critic/score/mean")] == [
        (1, 0.5),
        (2, 0.75),
    ]
    assert run.data.metrics["val-core/a/acc/mean_at_1"] == 0.25
    assert run.data.params["algorithm.adv_estimator"] == "gae"
    assert "`0+1=`" in next((tmp_path / "mlflow").rglob("step_1.md")).read_text()


class Broken:
    def __init__(self) -> None:
        self.calls = 0

    def log(self, step, metrics) -> None:
        self.calls += 1
        raise OSError("disk full")

    def log_samples(self, step, samples) -> None:
        raise OSError("disk full")

    def close(self) -> None:
        pass


class Recorder:
    def __init__(self) -> None:
        self.logged: list = []
        self.samples: list = []

    def log(self, step, metrics) -> None:
        self.logged.append((step, dict(metrics)))

    def log_samples(self, step, samples) -> None:
        self.samples.append((step, list(samples)))

    def close(self) -> None:
        pass


def test_a_failing_logger_is_reported_once_and_stops_nothing(caplog: pytest.LogCaptureFixture) -> None:
    broken, recorder = Broken(), Recorder()
    both = Loggers({"broken": broken, "recorder": recorder})
    with caplog.at_level(logging.ERROR):
        for step in (1, 2, 3):
            both.log(step, {"actor/lr": 1e-6})
    assert [step for step, _ in recorder.logged] == [1, 2, 3]
    assert broken.calls == 3
    (record,) = caplog.records
    assert "logger 'broken' FAILED" in record.getMessage()
    assert record.exc_info is not None
    both.close()
    assert "logger 'broken' failed 3 times" in caplog.records[-1].getMessage()


def test_an_undeclared_metric_raises_and_reaches_no_logger() -> None:
    recorder = Recorder()
    with pytest.raises(UndeclaredMetric, match="actor/foo"):
        Loggers({"recorder": recorder}).log(1, {"actor/lr": 1.0, "actor/foo": 1.0})
    assert recorder.logged == []


def test_an_error_at_construction_stops(config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError("no such server")

    monkeypatch.setitem(loggers.LOGGERS, "mlflow", fail)
    with pytest.raises(OSError, match="no such server"):
        build_loggers(config("mlflow"), tmp_path)


@pytest.mark.parametrize(("shown", "expected"), [(0, []), (2, [[0, 1]])])
def test_only_so_many_samples_are_shown(sample, shown: int, expected: list) -> None:
    recorder = Recorder()
    Loggers({"recorder": recorder}, shown_samples=shown).log_samples(1, [sample(i) for i in range(5)])
    assert [[s.index for s in samples] for _, samples in recorder.samples] == expected


def test_flatten() -> None:
    assert flatten({"a": {"b": 1, "c": {}}, "d": [2]}) == [("a.b", 1), ("a.c", {}), ("d", [2])]
