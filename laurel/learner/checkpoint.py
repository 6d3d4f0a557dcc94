"""The life of a checkpoint folder: written beside, made whole by one rename, found again, thinned out.

::

    ROOT/global_step_8.incomplete/   while it is written; never loaded
    ROOT/global_step_8/              whole: manifest.json lists every file with size and checksum
    ROOT/LATEST                      the name of the newest, for people and scripts

Whatever moment a process dies at, the newest whole checkpoint can be found. This file knows nothing of what is inside;
shards.py writes the tensors of a role.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from laurel.types import LaurelError

FORMAT_VERSION = 1
MANIFEST = "manifest.json"
LATEST = "LATEST"
_INCOMPLETE = ".incomplete"
_REPLACED = ".replaced"
_NAME = re.compile(r"global_step_(\d+)")


class Found(NamedTuple):
    """The newest whole checkpoint, or None, and what was passed over on the way to it."""

    folder: Path | None
    notes: tuple[str, ...]


def step_of(folder: Path) -> int:
    """The step in a checkpoint folder's name."""
    match = _NAME.fullmatch(folder.name.removesuffix(_INCOMPLETE))
    if match is None:
        raise LaurelError(f"{folder} is no checkpoint folder; its name should be global_step_N")
    return int(match[1])


def begin_checkpoint(root: Path, step: int) -> Path:
    """A fresh folder to write step ``step`` into; ``commit_checkpoint`` makes it a checkpoint."""
    folder = root / f"global_step_{step}{_INCOMPLETE}"
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    return folder


def commit_checkpoint(folder: Path, contents: Mapping[str, Any] | None = None) -> Path:
    """Make what was written into ``folder`` the checkpoint of its step; returns its final path.

    Every file is on disk before the manifest is, and the manifest before the rename. ``contents`` is kept in it.
    """
    final = folder.with_name(f"global_step_{step_of(folder)}")
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    with ThreadPoolExecutor(4) as pool:
        entries = dict(zip((str(path.relative_to(folder)) for path in files), pool.map(_sync, files), strict=True))
    manifest = {"format_version": FORMAT_VERSION, "step": step_of(folder), "files": entries, **(contents or {})}
    _write(folder / MANIFEST, json.dumps(manifest, indent=1))
    for inner in (*(path for path in folder.rglob("*") if path.is_dir()), folder):
        _sync_folder(inner)
    replaced = final.with_name(final.name + _REPLACED)
    if final.exists():
        if replaced.exists():
            shutil.rmtree(replaced)
        final.rename(replaced)
    folder.rename(final)
    _sync_folder(final.parent)
    if replaced.exists():
        shutil.rmtree(replaced)
    pending = final.parent / f"{LATEST}{_INCOMPLETE}"
    _write(pending, final.name + "\n")
    pending.replace(final.parent / LATEST)
    _sync_folder(final.parent)
    return final


def damage(folder: Path) -> str | None:
    """Why a checkpoint cannot be trusted, or None if every file is as its manifest says."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
        version, files = manifest["format_version"], manifest["files"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"its {MANIFEST} cannot be read ({error})"
    if version > FORMAT_VERSION:
        return f"its format_version {version} is newer than {FORMAT_VERSION}, which this Laurel reads"
    for name, entry in files.items():
        path = folder / name
        size = path.stat().st_size if path.is_file() else None
        if size != entry["bytes"]:
            return f"{name} is missing" if size is None else f"{name} has {size} bytes instead of {entry['bytes']}"
    with ThreadPoolExecutor(4) as pool:
        sums = pool.map(lambda name: _checksum(folder / name), files)
        for name, found in zip(files, sums, strict=True):
            if found != files[name]["sha256"]:
                return f"{name} does not match its checksum"
    return None


def newest_checkpoint(root: Path) -> Found:
    """The newest whole checkpoint under ``root``. Unfinished and damaged ones are passed over and said so."""
    _undo_half_replaced(root)
    notes = []
    for folder in sorted(_steps(root, unfinished=True), key=lambda path: (-step_of(path), path.name)):
        if folder.name.endswith(_INCOMPLETE):
            notes.append(f"passed over {folder}: it was never finished")
            continue
        wrong = damage(folder)
        if wrong is None:
            return Found(folder, tuple(notes))
        notes.append(f"passed over {folder}: {wrong}")
    return Found(None, tuple(notes))


def prune(root: Path, keep: int | None) -> list[Path]:
    """Delete all but the newest ``keep`` checkpoints (None keeps all), and unfinished ones older than those kept.

    Counts only those with a manifest, so that damaged folders do not push a good one out. Returns what was deleted.
    """
    if keep is None:
        return []
    if keep < 1:
        raise ValueError(f"keep={keep} would delete the last checkpoint; keep at least 1")
    whole = sorted((path for path in _steps(root) if (path / MANIFEST).is_file()), key=step_of, reverse=True)
    if not whole:
        return []
    oldest = step_of(whole[:keep][-1])
    gone = [path for path in _steps(root, unfinished=True) if step_of(path) < oldest]
    for path in gone:
        shutil.rmtree(path)
    return sorted(gone)


def _undo_half_replaced(root: Path) -> None:
    """A save that replaced a checkpoint of the same step and died between its two renames left the old one aside."""
    for aside in root.glob(f"global_step_*{_REPLACED}") if root.is_dir() else ():
        final = aside.with_name(aside.name.removesuffix(_REPLACED))
        if final.exists():
            shutil.rmtree(aside)
        else:
            aside.rename(final)


def _steps(root: Path, unfinished: bool = False) -> list[Path]:
    if not root.is_dir():
        return []
    ends = ("", _INCOMPLETE) if unfinished else ("",)
    return [p for p in root.iterdir() if p.is_dir() and any(_NAME.fullmatch(p.name.removesuffix(e)) for e in ends)]


def _sync(path: Path) -> dict[str, int | str]:
    with path.open("rb") as file:
        os.fsync(file.fileno())
    return {"bytes": path.stat().st_size, "sha256": _checksum(path)}


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _write(path: Path, text: str) -> None:
    with path.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
