from __future__ import annotations

import pytest

from laurel.tracking.metrics import METRICS, UndeclaredMetric, combine, declared


def test_names_of_dashboards_are_declared() -> None:
    names = [
        "actor/pg_loss",
        "actor/entropy",
        "critic/score/mean",
        "critic/kl_coeff",
        "response_length/clip_ratio",
        "timing_s/update_actor",
        "timing_per_token_ms/gen",
        "perf/throughput",
        "training/global_step",
    ]
    assert [declared(name).name for name in names] == names


def test_validation_names_follow_a_pattern() -> None:
    assert declared("val-core/openai/gsm8k/acc/mean@1").name == "val-core/{source}/{measure}"
    with pytest.raises(UndeclaredMetric):
        declared("val-core/gsm8k")


def test_placeholder_itself_is_no_metric_name() -> None:
    assert declared("val-aux/{source}/{measure}").reducer == "last"  # any text fits, braces too
    with pytest.raises(UndeclaredMetric):
        declared("{source}")


def test_undeclared_name_offers_the_nearest() -> None:
    with pytest.raises(UndeclaredMetric, match="'actor/pg_los' is not declared: did you mean 'actor/pg_loss'"):
        declared("actor/pg_los")


def test_every_metric_is_described_by_one_sentence_and_has_a_unit() -> None:
    for name, metric in METRICS.items():
        assert metric.name == name
        assert metric.definition.endswith(".")
        assert len(metric.definition) > 20
        assert metric.unit


def test_combine_uses_each_reducer() -> None:
    parts = [
        {"actor/pg_loss": 1.0, "actor/lr": 1e-6, "critic/score/max": 5.0, "critic/score/min": 2.0, "timing_s/gen": 1.0},
        {"actor/pg_loss": 3.0, "actor/lr": 2e-6, "critic/score/max": 4.0, "critic/score/min": 1.0, "timing_s/gen": 2.5},
    ]
    assert combine(parts) == {
        "actor/pg_loss": 2.0,
        "actor/lr": 2e-6,
        "critic/score/max": 5.0,
        "critic/score/min": 1.0,
        "timing_s/gen": 3.5,
    }
