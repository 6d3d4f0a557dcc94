from __future__ import annotations

import math
import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch

from laurel.algos.correction import (
    Correction,
    NoCorrection,
    build_correction,
    effective_sample_size,
    gauge,
    gauge_parts,
    log_ratios,
    normalized,
    row_log_ratios,
    truncated_weights,
    vetoed,
    within,
)
from laurel.config.correction import RolloutCorrection
from laurel.tracking.metrics import declared

NAN = float("nan")
OFF = Correction(weigh=None, threshold=2.0, normalize=False, reject=None, lower=0.5, upper=2.0, veto=None)


def logs(*ratios: float) -> torch.Tensor:
    return torch.tensor(ratios, dtype=torch.float64).log()


def everywhere(count: int) -> torch.Tensor:
    return torch.ones(count, dtype=torch.bool)


def rows_of(*lengths: int) -> dict:
    return {
        "row_of_token": torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths)),
        "row_count": len(lengths),
    }


# --- the formulas, by the numbers of their docstrings ---------------------------------------------------------------


def test_log_ratios_are_of_active_tokens_and_bounded() -> None:
    found = log_ratios(
        old_log_probs=torch.tensor([-1.0, NAN, 0.0, -math.inf]),
        rollout_log_probs=torch.tensor([-1.5, 0.0, -90.0, -1.0]),
        active=torch.tensor([True, False, True, True]),
    )
    assert found.tolist() == [0.5, 0.0, 20.0, -20.0]


@pytest.mark.parametrize(
    ("level", "expected"), [("token", [0.2, 0.4]), ("sequence", [0.6, 0.6]), ("geometric", [0.3, 0.3])]
)
def test_row_log_ratios(level: str, expected: list[float]) -> None:
    """A tool token between them and a second row change nothing."""
    found = row_log_ratios(
        torch.tensor([0.2, 0.0, 0.4, 9.0]),
        active=torch.tensor([True, False, True, True]),
        level=level,
        **rows_of(3, 1),
    )
    assert [found[0].item(), found[2].item()] == pytest.approx(expected)
    assert found[1].item() == 0.0
    assert found[3].item() == 9.0


def test_a_row_s_ratio_is_bounded_too() -> None:
    found = row_log_ratios(torch.full((3,), 15.0), active=everywhere(3), level="sequence", **rows_of(3))
    assert found.tolist() == [20.0] * 3


def test_truncated_weights() -> None:
    ratios = logs(0.5, 1, 4, 1)
    active = torch.tensor([True, True, True, False])
    assert truncated_weights(ratios, active=active, threshold=2.0).tolist() == pytest.approx([0.5, 1, 2, 0])


def test_normalized_by_tokens_and_by_rows() -> None:
    by_token = normalized(torch.tensor([0.5, 1.0, 2.0]), active=everywhere(3), level="token", **rows_of(2, 1))
    assert by_token.tolist() == pytest.approx([0.429, 0.857, 1.714], abs=1e-3)
    by_row = normalized(torch.tensor([1.0, 1.0, 3.0]), active=everywhere(3), level="sequence", **rows_of(2, 1))
    assert by_row.tolist() == pytest.approx([0.5, 0.5, 1.5])
    none = normalized(torch.zeros(2), active=~everywhere(2), level="token", **rows_of(2))
    assert none.tolist() == [0.0, 0.0]


def test_within() -> None:
    assert within(logs(0.4, 0.5, 1, 2, 3), lower=0.5 - 1e-9, upper=2 + 1e-9).tolist() == [
        False,
        True,
        True,
        True,
        False,
    ]


def test_vetoed() -> None:
    found = vetoed(logs(1, 0.001, 1, 1), active=everywhere(4), threshold=0.01, **rows_of(2, 2))
    assert found.tolist() == [True, True, False, False]
    tool = vetoed(logs(1, 0.001), active=torch.tensor([True, False]), threshold=0.01, **rows_of(2))
    assert tool.tolist() == [False, False]


def test_gauge_parts() -> None:
    found = gauge_parts(
        old_log_probs=torch.cat([logs(0.5, 0.5), torch.tensor([NAN])]),
        rollout_log_probs=torch.cat([logs(0.5, 0.25), torch.tensor([0.0])]),
        active=torch.tensor([True, True, False]),
        count=2.0,
    )
    metrics = {name: value.item() for name, value in found.items()}
    assert metrics == pytest.approx(
        {
            "rollout/log_prob_diff/mean": math.log(2) / 2,
            "rollout/log_prob_diff/max": math.log(2),
            "rollout_corr/k3_kl": (1 - math.log(2)) / 2,
            "rollout_corr/ratio/mean": 1.5,
            "rollout_corr/chi2_token": 1.5,
        }
    )
    assert effective_sample_size(metrics) == {"rollout_corr/eff_sample_size": pytest.approx(0.9)}
    assert all(declared(name).name == name for name in metrics)


def test_no_sample_size_without_a_gauge() -> None:
    assert effective_sample_size({"actor/lr": 1.0}) == {}


# --- a batch --------------------------------------------------------------------------------------------------------


def batch_of(make_batch, ratios: list[list[float]], **columns):
    """A prompt token and then sampled tokens with these ratios of the learner to the engine, a row each."""
    old = [x for row in ratios for x in [NAN, *([-1.0] * len(row))]]
    rollout = [x for row in ratios for x in [NAN, *(-1.0 - math.log(r) for r in row)]]
    rows = [(1, [True] * len(row)) for row in ratios]
    return make_batch(rows, old_log_probs=old, rollout_log_probs=rollout, **columns)


def sampled(batch, column: torch.Tensor, full) -> list:
    return column[full.response_mask].tolist()


def test_token_weights_become_a_column_and_the_mask_stays(make_batch) -> None:
    batch = batch_of(make_batch, [[0.5, 4], [1]])
    trained, metrics = replace(OFF, weigh="token").apply(batch)
    assert trained.rollout_is_weights.dtype == torch.float32
    assert sampled(batch, trained.rollout_is_weights, batch) == pytest.approx([0.5, 2, 1])
    assert trained.rollout_is_weights[~batch.response_mask].tolist() == [0.0, 0.0]
    assert torch.equal(trained.response_mask, batch.response_mask)
    assert trained.weight.tolist() == [1.0, 1.0]
    assert metrics["rollout_corr/rollout_is_mean"] == pytest.approx(3.5 / 3)
    assert metrics["rollout_corr/rollout_is_max"] == pytest.approx(2.0)


def test_sequence_weights_are_products(make_batch) -> None:
    batch = batch_of(make_batch, [[0.5, 0.5], [2, 2], [1.5]])
    trained, _ = replace(OFF, weigh="sequence", threshold=3.0).apply(batch)
    assert sampled(batch, trained.rollout_is_weights, batch) == pytest.approx([0.25, 0.25, 3, 3, 1.5])
    same, _ = replace(OFF, weigh="sequence", threshold=3.0, normalize=True).apply(batch)
    mean = (0.25 + 3 + 1.5) / 3
    assert sampled(batch, same.rollout_is_weights, batch) == pytest.approx(
        [0.25 / mean] * 2 + [3 / mean] * 2 + [1.5 / mean]
    )


@pytest.mark.parametrize(
    ("level", "kept", "fractions"),
    [
        ("token", [True, False, True, True, False], (2 / 5, 2 / 3)),
        ("sequence", [False, False, True, True, False], (3 / 5, 2 / 3)),
        ("geometric", [True, True, True, True, False], (1 / 5, 1 / 3)),
    ],
)
def test_rejection(make_batch, level: str, kept: list[bool], fractions: tuple[float, float]) -> None:
    """Ratios (1.2, 2.5): product 3, geometric mean 1.73; (0.8, 1.1): 0.88; (0.1). Kept are 0.5 to 2."""
    batch = batch_of(make_batch, [[1.2, 2.5], [0.8, 1.1], [0.1]])
    trained, metrics = replace(OFF, reject=level).apply(batch)
    assert sampled(batch, trained.response_mask, batch) == kept
    assert not bool((trained.response_mask & ~batch.response_mask).any())
    # A row without a token left counts in no mean over rows
    assert trained.weight.tolist() == [float(any(kept[:2])), 1.0, 0.0]
    found = [metrics[f"rollout_corr/rollout_rs{part}_masked_fraction"] for part in ("", "_seq")]
    assert found == pytest.approx(list(fractions))
    assert not trained.has("rollout_is_weights")


def test_veto_leaves_out_whole_rows(make_batch) -> None:
    batch = batch_of(make_batch, [[1, 1e-5], [0.5, 0.5]])
    trained, _ = replace(OFF, veto=1e-4).apply(batch)
    assert sampled(batch, trained.response_mask, batch) == [False, False, True, True]
    assert trained.weight.tolist() == [0.0, 1.0]


def test_weights_and_rejection_together(make_batch) -> None:
    """The mean that normalizes is that of the kept tokens."""
    batch = batch_of(make_batch, [[0.6, 9], [1.8]])
    trained, _ = replace(OFF, weigh="token", reject="token", normalize=True).apply(batch)
    assert sampled(batch, trained.rollout_is_weights, batch) == pytest.approx([0.5, 0, 1.5])


def test_rows_of_weight_0_and_tool_tokens_are_neither_read_nor_counted(make_batch) -> None:
    batch = make_batch(
        [(1, [True, False, True]), (1, [True])],
        old_log_probs=[NAN, -1, NAN, -1, NAN, NAN],
        rollout_log_probs=[NAN, -1, NAN, -1, NAN, NAN],
    ).with_(weight=torch.tensor([1.0, 0.0]))
    every = replace(OFF, weigh="sequence", reject="geometric", veto=1e-4, normalize=True)
    trained, metrics = every.apply(batch)
    assert trained.response_mask.tolist() == [False, True, False, True, False, False]
    assert trained.rollout_is_weights.tolist() == [0, 1, 0, 1, 0, 0]
    assert trained.weight.tolist() == [1.0, 0.0]
    assert all(math.isfinite(value) for value in metrics.values())


def test_everything_rejected_is_still_a_batch(make_batch) -> None:
    trained, metrics = replace(OFF, weigh="token", reject="token", normalize=True).apply(batch_of(make_batch, [[9.0]]))
    assert not bool(trained.response_mask.any())
    assert trained.weight.tolist() == [0.0]
    assert trained.rollout_is_weights.tolist() == [0.0, 0.0]
    assert metrics["rollout_corr/rollout_rs_masked_fraction"] == 1.0
    assert "rollout_corr/rollout_is_mean" not in metrics


def reference(batch, settings: Correction) -> tuple[np.ndarray, np.ndarray]:
    """Weights and kept tokens of all tokens, one row after the other, in float64."""
    weights, kept = np.zeros(batch.token_count), np.zeros(batch.token_count, dtype=bool)
    for row in range(batch.row_count):
        if batch.weight[row] == 0:
            continue
        where = [t for t in range(batch.token_count) if batch.row_of_token[t] == row and batch.response_mask[t]]
        ratio = {t: math.exp(float(batch.old_log_probs[t]) - float(batch.rollout_log_probs[t])) for t in where}
        product = math.prod(ratio.values())
        levels = {"token": ratio, "sequence": dict.fromkeys(where, product)}
        levels["geometric"] = dict.fromkeys(where, product ** (1 / len(where)))
        veto = settings.veto is not None and min(ratio.values()) < settings.veto
        for t in where:
            judged = levels[settings.reject][t] if settings.reject else settings.lower
            kept[t] = settings.lower <= judged <= settings.upper and not veto
            if settings.weigh and kept[t]:
                weights[t] = min(levels[settings.weigh][t], settings.threshold)
    return weights, kept


@pytest.mark.parametrize("veto", [None, 0.3])
@pytest.mark.parametrize("reject", [None, "token", "sequence", "geometric"])
@pytest.mark.parametrize("weigh", ["token", "sequence"])
def test_equals_the_reference_on_ragged_batches(random_batch, weigh, reject, veto) -> None:
    for seed in range(3):
        batch = random_batch(seed)
        noise = torch.randn(batch.token_count, generator=torch.Generator().manual_seed(seed))
        batch = batch.with_(
            rollout_log_probs=batch.old_log_probs + 0.3 * noise, weight=torch.tensor([1.0] * 11 + [0.0])
        )
        settings = replace(OFF, weigh=weigh, reject=reject, veto=veto)
        trained, _ = settings.apply(batch)
        weights, kept = reference(batch, settings)
        np.testing.assert_array_equal((trained.response_mask & (batch.weight > 0)[batch.row_of_token]).numpy(), kept)
        np.testing.assert_allclose(trained.rollout_is_weights.numpy(), weights, rtol=1e-6, atol=1e-6)


# --- the gauge, and what is built -----------------------------------------------------------------------------------


def test_gauge_of_a_batch_is_the_sum_of_its_parts(random_batch) -> None:
    batch = random_batch(2)
    batch = batch.with_(rollout_log_probs=batch.old_log_probs + 0.1, weight=torch.tensor([1.0] * 11 + [0.0]))
    whole = gauge(batch)
    assert whole["rollout/log_prob_diff/mean"] == pytest.approx(0.1, abs=1e-6)
    assert whole["rollout/log_prob_diff/max"] == pytest.approx(0.1, abs=1e-6)
    assert whole["rollout_corr/k3_kl"] == pytest.approx(math.exp(-0.1) - 1 + 0.1, abs=1e-6)
    assert whole["rollout_corr/eff_sample_size"] == pytest.approx(1.0)
    count = float((batch.response_mask & (batch.weight > 0)[batch.row_of_token]).sum())
    total: dict[str, float] = {}
    for rows in ([0, 5, 11], [1, 2, 3, 4], [6, 7, 8, 9, 10]):
        part = batch.select(rows)
        found = gauge_parts(
            old_log_probs=part.old_log_probs,
            rollout_log_probs=part.rollout_log_probs,
            active=part.response_mask & (part.weight > 0)[part.row_of_token],
            count=count,
        )
        for name, value in found.items():
            join = max if name.endswith("max") else float.__add__
            total[name] = join(total.get(name, 0.0), value.item())
    assert total == pytest.approx({name: value for name, value in whole.items() if "eff" not in name})


def test_gauge_needs_both_log_probs(random_batch) -> None:
    assert gauge(random_batch(0)) == {}


def test_without_correction_the_batch_is_handed_back_and_measured(make_batch) -> None:
    batch = batch_of(make_batch, [[1, 2]])
    trained, metrics = NoCorrection().apply(batch)
    assert trained is batch
    assert metrics["rollout/log_prob_diff/max"] == pytest.approx(math.log(2))
    assert NoCorrection(measures=False).apply(batch) == (batch, {})


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, NoCorrection()),
        ({"bypass_mode": True}, NoCorrection(measures=False)),
        ({"bypass_mode": True, "rollout_is": "token"}, NoCorrection(measures=False)),
        ({"rollout_is": "token"}, replace(OFF, weigh="token", lower=1.0, upper=1.0)),
        (
            {"rollout_is": "sequence", "rollout_is_threshold": 5.0, "rollout_is_batch_normalize": True},
            replace(OFF, weigh="sequence", threshold=5.0, normalize=True, lower=1.0, upper=1.0),
        ),
        (
            {"rollout_rs": "geometric", "rollout_rs_threshold": 4.0},
            replace(OFF, reject="geometric", lower=0.25, upper=4.0),
        ),
        (
            {"rollout_rs": "token", "rollout_rs_threshold": 4.0, "rollout_rs_threshold_lower": 0.0},
            replace(OFF, reject="token", lower=0.0, upper=4.0),
        ),
        ({"rollout_token_veto_threshold": 1e-4}, replace(OFF, veto=1e-4, lower=1.0, upper=1.0)),
    ],
)
def test_what_the_settings_build(given: dict, expected) -> None:
    built = build_correction(RolloutCorrection(**given))
    assert built == expected
    assert pickle.loads(pickle.dumps(built)) == expected
