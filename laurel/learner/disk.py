"""What checkpoints ask of a disk: files that are really there, checksums, and words for what it refuses."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from laurel.types import LaurelError

Entry = Mapping[str, Any]
"""Of one file: ``bytes`` and ``sha256``."""
T = TypeVar("T")
_FULL = ("no space left", "quota exceeded", "file too large")
_READ_ONLY = ("read-only file system", "permission denied", "not permitted")
_NO_FOLDER_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.EBADF)
_PROBE_BYTES = 1 << 16


class SaveError(LaurelError):
    """A checkpoint could not be written; what was saved before is untouched."""


def entry_of(path: Path) -> Entry:
    """Size and checksum of a file that is on disk, and not only in memory, when this returns."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
    return {"bytes": path.stat().st_size, "sha256": checksum(path)}


def entries_of(folder: Path, paths: Iterable[Path]) -> dict[str, Entry]:
    """``entry_of`` each, by path within ``folder``."""
    paths = sorted(paths)
    return dict(zip((str(path.relative_to(folder)) for path in paths), in_threads(entry_of, paths), strict=True))


def files_below(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def in_threads(function: Callable[[Path], T], paths: Iterable[Path]) -> list[T]:
    """Reading and hashing take turns with other threads, so a few files go at once."""
    with ThreadPoolExecutor(4) as pool:
        return list(pool.map(function, paths))


def checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_chunks(path: Path, chunks: Iterable[bytes | memoryview]) -> Entry:
    """``chunks`` as one file, on disk when this returns; its entry. Summed on the way: the file is not read again."""
    total = hashlib.sha256()
    with path.open("wb") as file:
        for chunk in chunks:
            file.write(chunk)
            total.update(chunk)
        file.flush()
        os.fsync(file.fileno())
        return {"bytes": file.tell(), "sha256": total.hexdigest()}


def write_text(path: Path, text: str) -> None:
    """``text`` on disk when this returns."""
    with path.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def replace_text(path: Path, text: str) -> None:
    """As ``write_text``; whoever reads ``path`` meanwhile sees the old text or the new one."""
    pending = path.with_name(path.name + ".incomplete")
    write_text(pending, text)
    pending.replace(path)
    sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Names in a folder on disk. Mounted object stores know no such thing, and need it for nothing."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in _NO_FOLDER_SYNC:
            raise
    finally:
        os.close(handle)


def free_bytes(folder: Path) -> int:
    """What the disk of ``folder``, or of the nearest folder above it that exists, has free for this user."""
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free


def probe(path: Path) -> None:
    """Write, flush and leave a small file at ``path``: whether this process may, and the disk takes it."""
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(_PROBE_BYTES))
        entry_of(path)


@contextmanager
def writing(target: Path) -> Iterator[None]:
    """What the disk refuses within this block becomes a SaveError that names ``target`` and the cure."""
    try:
        yield
    except Exception as error:
        # safetensors has an error type of its own for what the system refused
        if not isinstance(error, OSError) and type(error).__name__ != "SafetensorError":
            raise
        raise SaveError(f"{target} cannot be written: {error}; {_cure(target, str(error))}") from error


def _cure(target: Path, text: str) -> str:
    if any(sign in text.lower() for sign in _FULL):
        return (
            f"{free_bytes(target) / 2**30:.2f} GiB are free there. Checkpoints saved before are untouched: make room, "
            "keep fewer with trainer.max_actor_ckpt_to_keep, or set trainer.default_local_dir to a larger disk"
        )
    if any(sign in text.lower() for sign in _READ_ONLY):
        return "make it writable for this user, or set trainer.default_local_dir to a folder that is"
    return "checkpoints saved before are untouched; look at that disk, or set trainer.default_local_dir to another"
