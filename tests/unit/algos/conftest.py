from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from laurel.batch.token_batch import TokenBatch


def make_batch(rows: list[tuple[int, list[bool]]], **columns: list[float]) -> TokenBatch:
    """Rows as (prompt length, sampled flags of the response). Columns are given whole, per token or per row."""
    lengths = [prompt + len(sampled) for prompt, sampled in rows]
    cu_seqlens = torch.tensor([0, *lengths]).cumsum(0)
    mask = torch.tensor([flag for prompt, sampled in rows for flag in [False] * prompt + sampled])
    batch = TokenBatch(
        {"input_ids": torch.zeros(sum(lengths), dtype=torch.int64), "response_mask": mask},
        {
            "index": torch.arange(len(rows)),
            "group": torch.zeros(len(rows), dtype=torch.int64),
            "weight": torch.ones(len(rows)),
            "score": torch.zeros(len(rows)),
        },
        cu_seqlens,
    )
    return batch.with_(**{name: torch.tensor(column) for name, column in columns.items()})


def random_batch(seed: int = 0, row_count: int = 12) -> TokenBatch:
    """Ragged rows with environment tokens inside, groups of different sizes, and random columns."""
    generator = torch.Generator().manual_seed(seed)

    def draw(low: int, high: int) -> int:
        return int(torch.randint(low, high, (1,), generator=generator))

    rows = []
    for _ in range(row_count):
        sampled = (torch.rand(draw(1, 30), generator=generator) > 0.25).tolist()
        rows.append((draw(1, 5), [True, *sampled]))
    batch = make_batch(rows)
    noise = {
        name: torch.randn(batch.token_count, generator=generator)
        for name in ("rewards", "values", "advantages", "returns")
    }
    log_probs = {
        name: -torch.rand(batch.token_count, generator=generator) * 2
        for name in ("old_log_probs", "ref_log_probs", "log_probs")
    }
    return batch.with_(
        **noise,
        **log_probs,
        entropy=torch.rand(batch.token_count, generator=generator),
        score=torch.randn(row_count, generator=generator),
        group=torch.randint(0, 4, (row_count,), generator=generator),
    )


@pytest.fixture(name="make_batch")
def _make_batch() -> Callable[..., TokenBatch]:
    return make_batch


@pytest.fixture(name="random_batch")
def _random_batch() -> Callable[..., TokenBatch]:
    return random_batch
