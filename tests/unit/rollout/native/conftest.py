"""Triton's interpreter for kernels."""

from __future__ import annotations

from triton_interpreter import triton_interpreter

__all__ = ["triton_interpreter"]
