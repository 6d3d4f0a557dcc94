"""Where metrics go: a class per name of ``trainer.logger``. The only file that imports wandb, tensorboard or mlflow."""

from __future__ import annotations

import json
import logging
import math
import os
import shutil
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TextIO

from laurel.config.tree import Config
from laurel.tracking.console import stamped
from laurel.tracking.metrics import declared
from laurel.tracking.samples import Sample

log = logging.getLogger(__name__)

JSONL_NAME = "metrics.jsonl"


class Logger(Protocol):
    def log(self, step: int, metrics: Mapping[str, float]) -> None: ...

    def log_samples(self, step: int, samples: Sequence[Sample]) -> None: ...

    def close(self) -> None: ...


class ConsoleLogger:
    """One line per call: compact with colour on a terminal, plain with the time elsewhere."""

    SHOWN: tuple[tuple[str, str, str], ...] = (
        ("critic/score/mean", "score", "{:.3f}"),
        ("actor/pg_loss", "loss", "{:.4f}"),
        ("critic/vf_loss", "value loss", "{:.4f}"),
        ("actor/entropy", "entropy", "{:.3f}"),
        ("actor/ppo_kl", "kl", "{:.4f}"),
        ("actor/grad_norm", "grad", "{:.3f}"),
        ("response_length/mean", "length", "{:.1f}"),
        ("response_length/clip_ratio", "truncated", "{:.1%}"),
        ("perf/throughput", "tok/s/rank", "{:.0f}"),
        ("timing_s/step", "s", "{:.1f}"),
    )

    def __init__(self, config: Config, run_dir: Path, resumed_step: int | None, stream: TextIO | None = None):
        self._stream = stream or sys.stdout

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        shown = [(word, form.format(metrics[name])) for name, word, form in self.SHOWN if name in metrics]
        if shown:
            self._print(f"step {step}", shown)

    def log_samples(self, step: int, samples: Sequence[Sample]) -> None:
        for sample in samples:
            shown = [(name, repr(getattr(sample, name))) for name in ("prompt", "response", "ground_truth")]
            self._print(f"step {step} sample", [*shown, ("score", f"{sample.score:g}")])

    def close(self) -> None:
        pass

    def _print(self, head: str, shown: Sequence[tuple[str, str]]) -> None:
        if self._stream.isatty():
            from rich.console import Console
            from rich.text import Text

            text = Text(head, style="bold")
            for word, value in shown:
                text.append(f"  {word} ", style="dim").append(value, style="cyan")
            Console(file=self._stream).print(text)
        else:
            line = "  ".join([head, *(f"{word} {value}" for word, value in shown)])
            print(stamped(line), file=self._stream, flush=True)


class FileLogger:
    """``metrics.jsonl`` in the run's folder: an object per call, ``step`` and ``time`` (Unix seconds) first.

    After a resume, lines of later steps are dropped: they will be written again. A new run in an old folder keeps the
    old log under the first free name ``metrics.previous-<n>.jsonl``. A number that JSON lacks (NaN, infinity) is null.
    """

    def __init__(self, config: Config, run_dir: Path, resumed_step: int | None):
        path = run_dir / JSONL_NAME
        if path.exists():
            if resumed_step is None:
                os.replace(path, free_name(run_dir))
            else:
                keep_steps(path, resumed_step)
        self._file = path.open("a", encoding="utf-8")

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        row: dict[str, Any] = {"step": step, "time": round(time.time(), 3)}
        row |= {name: value if math.isfinite(value) else None for name, value in metrics.items()}
        self._file.write(json.dumps(row) + "\n")
        self._file.flush()

    def log_samples(self, step: int, samples: Sequence[Sample]) -> None:
        """Nothing: every validation's samples are kept as parquet anyway."""

    def close(self) -> None:
        self._file.close()


def free_name(run_dir: Path) -> Path:
    """The first ``metrics.previous-<n>.jsonl`` that does not exist."""
    number = 1
    while (path := run_dir / f"metrics.previous-{number}.jsonl").exists():
        number += 1
    return path


def keep_steps(path: Path, last_step: int) -> None:
    """Drop the lines of steps after ``last_step``, and a line that a crash cut off; the file is replaced at once.

    If whole lines go, the file as it was stays under the first free ``metrics.previous-<n>.jsonl``: who resumes from
    an older checkpoint may still want to see what came after it.
    """
    kept, dropped = [], 0
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            row = json.loads(line)
        except json.JSONDecodeError:
            continue
        if row["step"] <= last_step:
            kept.append(line + "\n")
        else:
            dropped += 1
    if dropped:
        shutil.copyfile(path, free_name(path.parent))
    partial = path.with_suffix(".jsonl.tmp")
    partial.write_text("".join(kept), encoding="utf-8")
    os.replace(partial, path)


class TensorboardLogger:
    """Event files in ``tensorboard/``. After a resume, what was written of later steps is hidden."""

    def __init__(self, config: Config, run_dir: Path, resumed_step: int | None):
        from torch.utils.tensorboard import SummaryWriter

        purge = None if resumed_step is None else resumed_step + 1
        self._writer = SummaryWriter(str(run_dir / "tensorboard"), purge_step=purge)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def log_samples(self, step: int, samples: Sequence[Sample]) -> None:
        self._writer.add_text("validation/samples", as_markdown(samples), step)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class WandbLogger:
    """A wandb run under ``wandb/``; its id is kept in ``wandb_run_id``, so a resumed run goes on in the same one.

    wandb keeps what it has of a step: values logged again after a resume are not recorded twice.
    """

    def __init__(self, config: Config, run_dir: Path, resumed_step: int | None):
        import wandb

        self._wandb = wandb
        self._run = wandb.init(
            project=config.trainer.project_name,
            name=config.trainer.experiment_name,
            id=stored_run_id(run_dir / "wandb_run_id", resumed_step, lambda: uuid.uuid4().hex[:8]),
            resume="never" if resumed_step is None else "allow",
            dir=str(run_dir),
            config=config.model_dump(),
        )

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._run.log(dict(metrics), step=step)

    def log_samples(self, step: int, samples: Sequence[Sample]) -> None:
        columns: list[str | int] = ["prompt", "response", "ground_truth", "score"]
        table = self._wandb.Table(
            columns=columns, data=[[s.prompt, s.response, s.ground_truth, s.score] for s in samples]
        )
        self._run.log({"validation/samples": table}, step=step)

    def close(self) -> None:
        self._run.finish()


class MlflowLogger:
    """An mlflow run, at MLFLOW_TRACKING_URI or else in ``mlflow.db`` of the run's folder; its id is kept likewise."""

    def __init__(self, config: Config, run_dir: Path, resumed_step: int | None):
        from mlflow import MlflowClient
        from mlflow.entities import Metric, Param

        self._metric = Metric
        uri = os.environ.get("MLFLOW_TRACKING_URI")
        self._client = MlflowClient(tracking_uri=uri or f"sqlite:///{run_dir.absolute()}/mlflow.db")
        name = config.trainer.project_name
        found = self._client.get_experiment_by_name(name)
        place = None if uri else (run_dir.absolute() / "mlflow").as_uri()
        experiment = found.experiment_id if found else self._client.create_experiment(name, artifact_location=place)

        def create() -> str:
            run = self._client.create_run(experiment, run_name=config.trainer.experiment_name)
            params = [Param(key, str(value)[:500]) for key, value in flatten(config.model_dump())]
            for start in range(0, len(params), 100):
                self._client.log_batch(run.info.run_id, params=params[start : start + 100])
            return str(run.info.run_id)

        self._run_id = stored_run_id(run_dir / "mlflow_run_id", resumed_step, create)
        self._client.set_terminated(self._run_id, status="RUNNING")

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        now = int(time.time() * 1000)
        # mlflow allows no @ in a name, which validation measures have (mean@8).
        values = [self._metric(name.replace("@", "_at_"), value, now, step) for name, value in metrics.items()]
        self._client.log_batch(self._run_id, metrics=values)

    def log_samples(self, step: int, samples: Sequence[Sample]) -> None:
        self._client.log_text(self._run_id, as_markdown(samples), f"validation/step_{step}.md")

    def close(self) -> None:
        self._client.set_terminated(self._run_id)


LOGGERS: dict[str, Callable[[Config, Path, int | None], Logger]] = {
    "console": ConsoleLogger,
    "file": FileLogger,
    "tensorboard": TensorboardLogger,
    "wandb": WandbLogger,
    "mlflow": MlflowLogger,
}


class Loggers:
    """All loggers of a run. One that fails while training is reported once, loudly, and does not stop the training."""

    def __init__(self, loggers: Mapping[str, Logger], *, shown_samples: int = 0):
        self._loggers = dict(loggers)
        self._shown_samples = shown_samples
        self._failures: dict[str, int] = {}

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Raises UndeclaredMetric for a name that metrics.py does not declare: that is a bug, not a failing logger."""
        values = {name: float(value) for name, value in metrics.items() if declared(name)}
        for name, logger in self._loggers.items():
            self._attempt(name, partial(logger.log, step, values))

    def log_samples(self, step: int, samples: Sequence[Sample]) -> None:
        """The first ``trainer.log_val_generations`` samples."""
        shown = samples[: self._shown_samples]
        for name, logger in self._loggers.items() if shown else ():
            self._attempt(name, partial(logger.log_samples, step, shown))

    def close(self) -> None:
        for name, logger in self._loggers.items():
            self._attempt(name, logger.close)
        for name, count in self._failures.items():
            log.error("logger %r failed %d times in this run; its record is incomplete", name, count)

    def _attempt(self, name: str, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception:
            if name not in self._failures:
                log.exception("logger %r FAILED; training goes on, further failures are counted, not shown", name)
            self._failures[name] = self._failures.get(name, 0) + 1


def build_loggers(config: Config, run_dir: Path, *, resumed_step: int | None = None) -> Loggers:
    """The loggers of ``trainer.logger``. ``resumed_step`` is the step a resumed run goes on from; None is a new run.

    A logger that cannot be made raises.
    """
    run_dir.mkdir(parents=True, exist_ok=True)
    names: list[str] = list(dict.fromkeys(config.trainer.logger))
    built = {name: LOGGERS[name](config, run_dir, resumed_step) for name in names}
    return Loggers(built, shown_samples=config.trainer.log_val_generations)


def stored_run_id(path: Path, resumed_step: int | None, create: Callable[[], str]) -> str:
    """The id of the run that is resumed, or a new one, which is then stored."""
    if resumed_step is not None and path.exists():
        return path.read_text(encoding="utf-8").strip()
    run_id = create()
    path.write_text(run_id + "\n", encoding="utf-8")
    return run_id


def flatten(tree: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """Nested settings as dotted paths. Example: ``{"a": {"b": 1}}`` gives ``[("a.b", 1)]``."""
    pairs: list[tuple[str, Any]] = []
    for name, value in tree.items():
        nested = isinstance(value, dict) and value
        pairs += flatten(value, f"{prefix}{name}.") if nested else [(f"{prefix}{name}", value)]
    return pairs


def as_markdown(samples: Sequence[Sample]) -> str:
    """A table for loggers that show text; each value is one code span, so nothing in it is read as markup."""

    def cell(text: str) -> str:
        return "`" + text.replace("`", "'").replace("|", "\\|").replace("\n", " ⏎ ") + "`"

    rows = [f"| {cell(s.prompt)} | {cell(s.response)} | {cell(s.ground_truth)} | {s.score:g} |" for s in samples]
    return "\n".join(["| prompt | response | ground truth | score |", "|---|---|---|---|", *rows])
