"""Triton kernels on a CPU: Triton's interpreter computes what a GPU would, slowly. tests/conftest.py switches it on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def triton_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    """NumPy 2.4 no longer makes an int of an array of one number, which Triton's interpreter does for ``range``."""
    if Path("/dev/nvidia0").exists():
        pytest.skip("on a GPU kernels run as compiled: tests/gpu")
    pytest.importorskip("triton", reason="triton is not installed: pip install triton")
    from triton.runtime import interpreter

    patch = interpreter._patch_lang_tensor

    def patched(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    monkeypatch.setattr(interpreter, "_patch_lang_tensor", patched)
