"""The life of a checkpoint folder: written beside, made whole by one rename, found again, thinned out.

::

    ROOT/global_step_8.incomplete/   while it is written; never loaded
    ROOT/global_step_8/              whole: manifest.json lists every file with size and checksum
    ROOT/LATEST                      the name of the newest, for people and scripts

Whatever moment a process dies at, the newest whole checkpoint can be found. This file knows nothing of what is inside;
shards.py writes the tensors of a role.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from laurel.learner.disk import (
    Entry,
    SaveError,
    checksum,
    entries_of,
    files_below,
    in_threads,
    replace_text,
    sync_folder,
    write_text,
    writing,
)
from laurel.types import LaurelError

FORMAT_VERSION = 1
MANIFEST = "manifest.json"
LATEST = "LATEST"
_INCOMPLETE = ".incomplete"
_REPLACED = ".replaced"
_DELETED = ".deleted"
_NAME = re.compile(r"global_step_(\d+)")


class Found(NamedTuple):
    """The newest whole checkpoint, or None; what was passed over on the way to it, and which of those had been
    finished once, so that something is lost."""

    folder: Path | None
    notes: tuple[str, ...]
    damaged: tuple[Path, ...] = ()


def step_of(folder: Path) -> int:
    """The step in a checkpoint folder's name."""
    match = _NAME.fullmatch(folder.name.removesuffix(_INCOMPLETE))
    if match is None:
        raise LaurelError(f"{folder} is no checkpoint folder; its name should be global_step_N")
    return int(match[1])


def begin_checkpoint(root: Path, step: int) -> Path:
    """A fresh folder to write step ``step`` into; ``commit_checkpoint`` makes it a checkpoint."""
    folder = root / f"global_step_{step}{_INCOMPLETE}"
    with writing(folder):
        if folder.exists():
            shutil.rmtree(folder)
        folder.mkdir(parents=True)
    return folder


def discard_checkpoint(folder: Path) -> None:
    """Give back the room of one that could not be finished. A disk that refuses even this leaves it lying, unloaded."""
    shutil.rmtree(folder, ignore_errors=True)


def commit_checkpoint(
    folder: Path, contents: Mapping[str, Any] | None = None, *, written: Mapping[str, Entry] | None = None
) -> Path:
    """Make what was written into ``folder`` the checkpoint of its step; returns its final path.

    Every file is on disk before the manifest is, and the manifest before the rename. ``contents`` is kept in it.
    ``written`` are files, by path within the folder, that whoever wrote them has flushed and summed already. Raises
    SaveError if the disk refuses, or if one of those has another size here.
    """
    final = folder.with_name(f"global_step_{step_of(folder)}")
    with writing(folder):
        files = files_below(folder)
        known = dict(written or {})
        rest = [path for path in files if str(path.relative_to(folder)) not in known]
        entries = entries_of(folder, rest) | known
        for name, entry in known.items():
            wrong = _wrong_size(folder, name, entry)
            if wrong is not None:
                raise SaveError(f"{folder}: {wrong}, as its rank wrote it; is the disk shared by all nodes, and sound?")
        manifest = {"format_version": FORMAT_VERSION, "step": step_of(folder), **(contents or {}), "files": entries}
        write_text(folder / MANIFEST, json.dumps(manifest, indent=1))
        for inner in (*(path for path in folder.rglob("*") if path.is_dir()), folder):
            sync_folder(inner)
        replaced = final.with_name(final.name + _REPLACED)
        if final.exists():
            if replaced.exists():
                shutil.rmtree(replaced)
            final.rename(replaced)
        folder.rename(final)
        sync_folder(final.parent)
        if replaced.exists():
            shutil.rmtree(replaced)
        replace_text(final.parent / LATEST, final.name + "\n")
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
        wrong = _wrong_size(folder, name, entry)
        if wrong is not None:
            return wrong
    sums = in_threads(checksum, [folder / name for name in files])
    for name, found in zip(files, sums, strict=True):
        if found != files[name]["sha256"]:
            return f"{name} does not match its checksum"
    return None


def newest_checkpoint(root: Path) -> Found:
    """The newest whole checkpoint under ``root``. Unfinished and damaged ones are passed over and said so."""
    _undo_half_replaced(root)
    notes: list[str] = []
    damaged: list[Path] = []
    for folder in sorted(_steps(root, unfinished=True), key=lambda path: (-step_of(path), path.name)):
        if folder.name.endswith(_INCOMPLETE):
            notes.append(f"passed over {folder}: it was never finished")
            continue
        wrong = damage(folder)
        if wrong is None:
            return Found(folder, tuple(notes), tuple(damaged))
        notes.append(f"passed over {folder}: {wrong}")
        damaged.append(folder)
    return Found(None, tuple(notes), tuple(damaged))


def format_version(folder: Path) -> int | None:
    """The version that a checkpoint was written in; None if its manifest cannot be read."""
    try:
        return int(json.loads((folder / MANIFEST).read_text())["format_version"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def prune(root: Path, keep: int | None) -> list[Path]:
    """Delete all but the newest ``keep`` checkpoints (None keeps all), and unfinished ones older than those kept.

    Counts only those whose files are all there in their sizes, so that damaged folders do not push a good one out. A
    folder is renamed before it is emptied: what is half deleted is never taken for a checkpoint. Returns what was
    deleted; raises SaveError if the disk refuses.
    """
    if keep is None:
        return []
    if keep < 1:
        raise ValueError(f"keep={keep} would delete the last checkpoint; keep at least 1")
    with writing(root):
        for half in root.glob(f"global_step_*{_DELETED}"):
            shutil.rmtree(half)
        whole = sorted((path for path in _steps(root) if _looks_whole(path)), key=step_of, reverse=True)
        if not whole:
            return []
        oldest = step_of(whole[:keep][-1])
        gone = [path for path in _steps(root, unfinished=True) if step_of(path) < oldest]
        for path in gone:
            doomed = path.with_name(path.name + _DELETED)
            path.rename(doomed)
            shutil.rmtree(doomed)
    return sorted(gone)


def _looks_whole(folder: Path) -> bool:
    """As ``damage``, without reading what is in the files."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
        return all(_wrong_size(folder, name, entry) is None for name, entry in manifest["files"].items())
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _wrong_size(folder: Path, name: str, entry: Entry) -> str | None:
    path = folder / name
    size = path.stat().st_size if path.is_file() else None
    if size == entry["bytes"]:
        return None
    return f"{name} is missing" if size is None else f"{name} has {size} bytes instead of {entry['bytes']}"


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
