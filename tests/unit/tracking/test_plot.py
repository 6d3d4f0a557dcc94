from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from laurel.tracking.plot import plot_curve, read_series, smoothed
from laurel.types import LaurelError


def write_log(path: Path, rows: list[dict]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_series_of_a_log(tmp_path: Path) -> None:
    log = write_log(
        tmp_path / "metrics.jsonl",
        [
            {"step": 2, "time": 1.0, "critic/score/mean": 0.5},
            {"step": 1, "time": 1.0, "critic/score/mean": 0.25, "actor/entropy": None},
            {"step": 2, "time": 2.0, "critic/score/mean": 0.75, "val-core/a/acc": 0.5},
        ],
    )
    assert read_series(log) == {"critic/score/mean": [(1, 0.25), (2, 0.75)], "val-core/a/acc": [(2, 0.5)]}


def test_smoothing_worked_example() -> None:
    assert smoothed([1.0, 3.0, 5.0], 2) == [1.0, 2.0, 4.0]


def test_curve_is_a_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from matplotlib.image import imread

    rows = [{"step": step, "critic/score/mean": step / 40} for step in range(1, 31)]
    rows += [{"step": 0, "val-core/arithmetic/acc": 0.1}, {"step": 30, "val-core/arithmetic/acc": 0.7}]
    out = plot_curve(write_log(tmp_path / "metrics.jsonl", rows), tmp_path / "plots" / "curve.png")
    picture = imread(out)
    assert picture.shape[:2] == (720, 1280)
    assert picture.std() > 0.01


def test_nothing_to_draw_is_said(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    log = write_log(tmp_path / "metrics.jsonl", [{"step": 1, "actor/lr": 1e-6}])
    with pytest.raises(LaurelError, match="did the run take a step"):
        plot_curve(log, tmp_path / "curve.png")


def test_missing_matplotlib_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(LaurelError, match="pip install matplotlib"):
        plot_curve(tmp_path / "metrics.jsonl", tmp_path / "curve.png")
