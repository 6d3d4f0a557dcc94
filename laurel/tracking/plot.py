"""The curve of a run, from its metrics.jsonl, as a picture."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from laurel.types import LaurelError

REWARD = "critic/score/mean"


def read_series(log: Path) -> dict[str, list[tuple[int, float]]]:
    """Every metric of a metrics.jsonl as (step, value) pairs by rising step; of a step logged twice the last counts."""
    series: dict[str, dict[int, float]] = {}
    for line in log.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        for name, value in row.items():
            if name not in ("step", "time") and value is not None:
                series.setdefault(name, {})[row["step"]] = value
    return {name: sorted(points.items()) for name, points in series.items()}


def smoothed(values: Sequence[float], window: int) -> list[float]:
    """Mean of the last ``window`` values at each place. Example: 1, 3, 5 with window 2 give 1, 2, 4."""
    return [sum(part) / len(part) for i in range(len(values)) if (part := values[max(0, i + 1 - window) : i + 1])]


def plot_curve(log: Path, out: Path, *, title: str = "") -> Path:
    """Mean score of the training batches and the val-core measures over steps, as PNG at ``out``.

    A log without either, or a machine without matplotlib, is a LaurelError that says what to do.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
        from matplotlib.ticker import MaxNLocator
    except ImportError as error:
        raise LaurelError(f"matplotlib is not installed; to draw {out}, run `pip install matplotlib`") from error

    series = read_series(log)
    reward = series.get(REWARD, [])
    validation = {name: points for name, points in series.items() if name.startswith("val-core/")}
    if not reward and not validation:
        raise LaurelError(f"{log} has neither {REWARD!r} nor val-core/... to draw; did the run take a step?")

    figure = Figure(figsize=(8, 4.5), dpi=160, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    if reward:
        steps, values = zip(*reward, strict=True)
        window = max(1, len(values) // 10)
        axes.plot(steps, values, color="#4c78a8", alpha=0.35, linewidth=1, label="training batch: mean score")
        if window > 1:
            label = f"training batch: mean of {window} steps"
            axes.plot(steps, smoothed(values, window), color="#4c78a8", linewidth=2, label=label)
    colours = ["#f58518", "#54a24b", "#b279a2", "#e45756", "#72b7b2"]
    for (name, points), colour in zip(sorted(validation.items()), colours * len(validation), strict=False):
        steps, values = zip(*points, strict=True)
        label = "validation: " + name.removeprefix("val-core/")
        axes.plot(steps, values, color=colour, linewidth=2, marker="o", markersize=5, label=label)
        axes.annotate(f"{values[-1]:.3g}", (steps[-1], values[-1]), (6, 0), textcoords="offset points", va="center")
    axes.set_xlabel("training step")
    axes.set_ylabel(_unit(series))
    axes.set_title(title or "Reward over training")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.margins(x=0.06)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="best", fontsize="small")
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, format="png")
    return out


def _unit(series: Mapping[str, Sequence[tuple[int, float]]]) -> str:
    drawn = [v for name, points in series.items() if name == REWARD or name.startswith("val-core/") for _, v in points]
    return "score, accuracy (fraction of 1)" if all(0 <= value <= 1 for value in drawn) else "score"
