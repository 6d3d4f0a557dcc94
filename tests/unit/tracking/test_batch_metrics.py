from __future__ import annotations

import pytest
import torch

from laurel.batch.token_batch import TokenBatch
from laurel.tracking.batch_metrics import batch_metrics, explained_variance, prompt_lengths, speed_metrics
from laurel.tracking.metrics import declared

NAN = float("nan")


def batch() -> TokenBatch:
    """Rows: prompt 2 + (sampled, tool, sampled); prompt 1 + (sampled); a padding row full of NaN."""
    return TokenBatch(
        {
            "response_mask": torch.tensor([False, False, True, False, True, False, True, False, True]),
            "rewards": torch.tensor([NAN, NAN, -0.5, NAN, 1.0, NAN, 2.0, NAN, NAN]),
            "advantages": torch.tensor([NAN, NAN, 1.0, NAN, 2.0, NAN, -3.0, NAN, NAN]),
            "returns": torch.tensor([NAN, NAN, 0.0, NAN, 2.0, NAN, 4.0, NAN, NAN]),
            "values": torch.tensor([NAN, NAN, 0.0, NAN, 1.0, NAN, 2.0, NAN, NAN]),
        },
        {
            "score": torch.tensor([1.0, 2.0, NAN]),
            "weight": torch.tensor([1.0, 1.0, 0.0]),
            "truncated": torch.tensor([True, False, True]),
        },
        torch.tensor([0, 5, 7, 9]),
    )


def test_prompt_lengths() -> None:
    assert prompt_lengths(batch()).tolist() == [2, 1, 1]
    none = TokenBatch({"response_mask": torch.tensor([False, False])}, {}, torch.tensor([0, 2]))
    assert prompt_lengths(none).tolist() == [2]


def test_statistics_of_a_batch() -> None:
    metrics = batch_metrics(batch())
    assert metrics == pytest.approx(
        {
            "critic/score/mean": 1.5,
            "critic/score/max": 2.0,
            "critic/score/min": 1.0,
            "critic/rewards/mean": 1.25,
            "critic/rewards/max": 2.0,
            "critic/rewards/min": 0.5,
            "critic/advantages/mean": 0.0,
            "critic/advantages/max": 2.0,
            "critic/advantages/min": -3.0,
            "critic/returns/mean": 2.0,
            "critic/returns/max": 4.0,
            "critic/returns/min": 0.0,
            "critic/values/mean": 1.0,
            "critic/values/max": 2.0,
            "critic/values/min": 0.0,
            "critic/vf_explained_var": 0.75,
            "prompt_length/mean": 1.5,
            "prompt_length/max": 2.0,
            "prompt_length/min": 1.0,
            "response_length/mean": 2.0,
            "response_length/max": 3.0,
            "response_length/min": 1.0,
            "response_length/clip_ratio": 0.5,
        }
    )
    assert all(declared(name).name == name for name in metrics)


def test_values_are_not_reported_without_a_critic() -> None:
    full = batch()
    tokens = {name: column for name, column in full.tokens.items() if name != "values"}
    metrics = batch_metrics(TokenBatch(tokens, full.rows, full.cu_seqlens))
    assert "critic/returns/mean" in metrics
    assert not any("values" in name or "vf_" in name for name in metrics)


def test_speed_counts_no_padding() -> None:
    timing = {"timing_s/gen": 1.5, "timing_s/update_actor": 0.7, "timing_s/step": 3.5}
    metrics = speed_metrics(batch(), timing, ranks=2)
    assert metrics == pytest.approx(
        {
            "perf/total_num_tokens": 7.0,
            "timing_per_token_ms/gen": 500.0,
            "timing_per_token_ms/update_actor": 100.0,
            "rollout/tokens_per_second": 2.0,
            "perf/time_per_step": 3.5,
            "perf/throughput": 1.0,
        }
    )
    assert all(declared(name).name == name for name in metrics)


def test_tokens_that_were_sampled_in_vain_took_their_time_too() -> None:
    metrics = speed_metrics(batch(), {"timing_s/gen": 1.5}, ranks=2, discarded=6.0)  # beside the 3 of the batch
    assert metrics["rollout/tokens_per_second"] == 6.0
    assert metrics["timing_per_token_ms/gen"] == pytest.approx(500.0 / 3)
    assert metrics["perf/total_num_tokens"] == 7.0


@pytest.mark.parametrize(
    ("values", "returns", "expected"),
    [([0.0, 1.0], [0.0, 2.0], 0.75), ([0.0, 2.0], [0.0, 2.0], 1.0), ([1.0, 1.0], [0.0, 2.0], 0.0), ([1.0], [2.0], 0.0)],
)
def test_explained_variance(values: list[float], returns: list[float], expected: float) -> None:
    assert explained_variance(torch.tensor(values), torch.tensor(returns)) == pytest.approx(expected)


def test_equal_returns_explain_nothing() -> None:
    assert explained_variance(torch.tensor([0.0, 1.0]), torch.tensor([2.0, 2.0])) == 0.0
