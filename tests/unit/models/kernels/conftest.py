"""Every test here runs kernels in Triton's interpreter."""

from __future__ import annotations

import pytest
from triton_interpreter import triton_interpreter

__all__ = ["triton_interpreter"]


@pytest.fixture(autouse=True)
def interpreted(triton_interpreter: None) -> None:
    pass
