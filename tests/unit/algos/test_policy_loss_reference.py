"""Every policy loss and aggregation against a slow reference in NumPy: values, and gradients by finite differences."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from unit.algos import reference_losses as reference
from unit.algos.loss_cases import CASES, SCALE, actor_loss, counts, reference_rows, run, with_choice

from laurel.algos.aggregate import AGGREGATIONS
from laurel.algos.table import POLICY_LOSSES


def batch_of(random_batch, seed: int, rows: int):
    """Ragged rows with prompt and tool tokens, of which the last has weight 0."""
    batch = with_choice(random_batch(seed, row_count=rows), seed)
    return batch.with_(weight=torch.tensor([1.0] * (rows - 1) + [0.0]))


def test_every_loss_has_a_reference() -> None:
    assert list(CASES) == list(POLICY_LOSSES)


@pytest.mark.parametrize("mode", list(AGGREGATIONS))
@pytest.mark.parametrize("name", list(CASES))
def test_value_equals_the_reference(random_batch, name: str, mode: str) -> None:
    for seed in range(4):
        batch = batch_of(random_batch, seed, 12)
        for weighted in (False, True):
            given = batch if weighted else without_weights(batch)
            value, _, _ = run(actor_loss(name, mode), given, *counts(batch), batch.tokens["log_probs"].double())
            expected = reference.total(CASES[name][1], reference_rows(batch, weighted=weighted), mode, SCALE)
            assert value.item() == pytest.approx(expected, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("mode", list(AGGREGATIONS))
@pytest.mark.parametrize("name", list(CASES))
def test_gradient_equals_finite_differences_of_the_reference(random_batch, name: str, mode: str) -> None:
    batch = batch_of(random_batch, 6, 5)
    rows = reference_rows(batch, weighted=True)
    _, _, found = run(actor_loss(name, mode), batch, *counts(batch), batch.tokens["log_probs"].double())
    expected = reference.gradient(CASES[name][1], rows, mode, SCALE)
    assert any(np.abs(row).max() > 1e-3 for row in expected)
    for number, row in enumerate(expected):
        own = batch.row_of_token == number
        sampled = found[own & batch.response_mask].numpy()
        if rows[number].weight:
            np.testing.assert_allclose(sampled, row, rtol=1e-6, atol=1e-6)
        else:
            assert (sampled == 0).all()
        assert bool((found[own & ~batch.response_mask] == 0).all())


@pytest.mark.parametrize("name", ["vanilla", "gspo", "clip_cov", "geo_mean", "cispo", "dppo_tv", "dppo_kl"])
def test_random_batches_meet_both_branches(random_batch, name: str) -> None:
    """Else the comparisons above would say little."""
    shares = []
    for seed in range(4):
        batch = batch_of(random_batch, seed, 12)
        _, metrics, _ = run(actor_loss(name, "token-mean"), batch, *counts(batch))
        shares.append(metrics["actor/pg_clipfrac"].item())
    assert 0.05 < sum(shares) / len(shares) < 0.95


def without_weights(batch):
    tokens = {name: column for name, column in batch.tokens.items() if name != "rollout_is_weights"}
    return type(batch)(tokens, batch.rows, batch.cu_seqlens)
