from __future__ import annotations

from collections.abc import Callable

import pytest

from laurel.config.tree import Config
from laurel.tracking.samples import Sample


@pytest.fixture
def sample() -> Callable[..., Sample]:
    def make(index: int = 0, **changes: object) -> Sample:
        values = {
            "index": index,
            "sample": 0,
            "data_source": "arithmetic",
            "prompt": f"{index}+1=",
            "response": str(index + 1),
            "ground_truth": str(index + 1),
            "score": 1.0,
            "finish_reason": "stop",
        }
        return Sample(**(values | changes))

    return make


@pytest.fixture
def config() -> Callable[..., Config]:
    def make(*loggers: str, **trainer: object) -> Config:
        return Config.model_validate({"trainer": {"logger": list(loggers), **trainer}})

    return make
