"""The software of a node: Python, the packages that must agree, and Laurel's own code. Torch is not imported."""

from __future__ import annotations

import functools
import hashlib
import platform
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import laurel
from laurel.preflight.doctor.finding import Finding

PACKAGES = ("ray", "torch", "transformers", "laurel")
CODE = "laurel's code"


def versions() -> dict[str, str]:
    """Of Python and PACKAGES; "none" for what is not installed."""
    return {"python": platform.python_version(), **{name: _version(name) for name in PACKAGES}}


def look() -> dict[str, str]:
    """``versions`` and a hash of Laurel's source, since two checkouts may bear the same version."""
    return versions() | {CODE: code_hash()}


@functools.cache
def code_hash(package: Path | None = None) -> str:
    package = package or Path(laurel.__file__).parent
    digest = hashlib.sha256()
    for file in sorted(package.rglob("*.py")):
        digest.update(f"{file.relative_to(package)}\0".encode() + file.read_bytes())
    return digest.hexdigest()[:8]


def differing(theirs: Mapping[str, str], own: Mapping[str, str], whose: str) -> list[str]:
    """What is another version there: of Python to the minor version, as Ray's pickles need, of packages at all.

    Example: ``["ray 2.59.0 (the head has 2.60.0)"]`` with ``whose="the head"``.
    """
    wrong = []
    for name, mine in own.items():
        other = theirs.get(name, "none")
        same = other == mine if name != "python" else other.rpartition(".")[0] == mine.rpartition(".")[0]
        if not same:
            wrong.append(f"{name} {other} ({whose} has {mine})")
    return wrong


def judge(own: Mapping[str, str], nodes: Mapping[str, Mapping[str, str]]) -> list[Finding]:
    """Nodes whose software is not this machine's."""
    found = []
    for name, theirs in nodes.items():
        wrong = differing(theirs, own, "this machine")
        if wrong:
            cure = "install the same environment on every node"
            if all(line.startswith(CODE) for line in wrong):
                cure = "bring every node to the same commit, or submit the job with a working_dir"
            found.append(Finding("versions", "error", name, ", ".join(wrong), cure))
    return found


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"
