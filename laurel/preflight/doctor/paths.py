"""Whether a path is the same thing on every node: what is read is compared by content, where ranks write together a
file is left on one node and looked for on the others."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from laurel.models.hub import hub_answers, is_folder, local_folder
from laurel.preflight.doctor.finding import Finding, Severity, Topic

_BLOCK, _BLOCKS = 64 << 10, 16
_SEEK_S = 3.0  # a network file system may show a new file a moment later
MISSING = "missing"
OFFLINE = "neither in its cache nor on a hub that it reaches"


@dataclass(frozen=True)
class Named:
    """A path that a setting names. ``everywhere``: it is read by ranks on every node, not only by the process that
    drives the run."""

    topic: Topic
    field: str
    path: str
    everywhere: bool


@dataclass(frozen=True)
class Content:
    """``digest`` of names, sizes and samples of the content; ``problem`` instead of it: MISSING, OFFLINE, or why it
    cannot be read."""

    size: int = 0
    digest: str = ""
    problem: str = ""


def look(path: str) -> Content:
    """A file, the files of a folder (not of folders in it), or what this node's cache has of a hub id."""
    try:
        place = Path(path).expanduser()
        folder = place if place.is_file() else local_folder(path)
        if folder is None:
            return Content(problem=MISSING if is_folder(path) or hub_answers() else OFFLINE)
        files = [folder] if folder.is_file() else sorted(file for file in folder.iterdir() if _counts(file))
        digest, size = hashlib.sha256(), 0
        for file in files:
            length = file.stat().st_size
            size += length
            digest.update(f"{file.name if folder.is_dir() else ''}\0{length}\0".encode())
            _sample(file, length, digest)
        return Content(size, digest.hexdigest()[:16])
    except OSError as error:
        return Content(problem=(error.strerror or str(error)).lower())


def _counts(file: Path) -> bool:
    return not file.name.startswith(".") and file.is_file()


def _sample(file: Path, length: int, digest: hashlib._Hash) -> None:
    """All of a small file; of a large one blocks at even distances, the first and the last among them."""
    with file.open("rb") as stream:
        if length <= _BLOCK * _BLOCKS:
            digest.update(stream.read())
            return
        for number in range(_BLOCKS):
            stream.seek((length - _BLOCK) * number // (_BLOCKS - 1))
            digest.update(stream.read(_BLOCK))


def judge(named: Named, contents: Mapping[str, Content]) -> list[Finding]:
    """``contents`` by node, that of the process that drives the run first; it decides what is right."""
    where = f"{named.field}={named.path}"
    first = next(iter(contents.values()))
    if first.problem:  # the checks of the settings name it
        return []
    hub = not is_folder(named.path) and not Path(named.path).exists()
    found = []
    for name, content in contents.items():
        severity: Severity = "error" if named.everywhere else "note"
        if content.problem == MISSING and hub:
            cure = "it is fetched there when the run starts; HF_HOME says where to"
            found.append(Finding(named.topic, "note", name, f"{where} is not in its cache yet", cure))
        elif content.problem == OFFLINE:
            cure = "fetch it there once with a network, copy HF_HOME there, or give a folder that all nodes share"
            found.append(Finding(named.topic, severity, name, f"{where} is {OFFLINE}", cure))
        elif content.problem:
            cure = "copy it there, or put it on a disk that all nodes share at the same path"
            if not named.everywhere:
                cure = f"only the process that drives the run reads it; to start runs there, {cure}"
            problem = "is not there" if content.problem == MISSING else f"cannot be read: {content.problem}"
            found.append(Finding(named.topic, severity, name, f"{where} {problem}", cure))
        elif content.digest != first.digest:
            what = f"{where} is another one there ({content.size:,} bytes; here {first.size:,})"
            cure = "copy it anew, or put it on a disk that all nodes share"
            if hub:
                cure = "its cache holds another revision: remove it there, and the newest is fetched"
            found.append(Finding(named.topic, severity, name, what, cure))
    return found


# --- a folder that several nodes write to -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Planted:
    """``made`` are the folders that were not there before, innermost first."""

    problem: str = ""
    made: tuple[str, ...] = ()


def plant(folder: str, token: str) -> Planted:
    """Leave a file in ``folder``, which is made if it is not there."""
    place = Path(folder)
    made = []
    while not place.exists():
        made.append(str(place))
        place = place.parent
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        with _file(folder, token).open("x") as file:
            file.write(token)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        uproot(folder, token, made)
        return Planted((error.strerror or str(error)).lower())
    return Planted(made=tuple(made))


def seek(folder: str, token: str, name: str, *, within_s: float = _SEEK_S) -> str:
    """On another node: why the file is not the one that was left, or why this node cannot write beside it. "" if all is
    well; MISSING."""
    deadline = time.monotonic() + within_s
    while True:
        try:
            text = _file(folder, token).read_text()
        except FileNotFoundError:
            text = MISSING
        except OSError as error:
            return f"cannot be read: {(error.strerror or str(error)).lower()}"
        if text == token:
            break
        if time.monotonic() >= deadline:
            return MISSING
        with suppress(OSError):  # asks a network file system anew; if it is not there the next look says so
            os.listdir(folder)
        time.sleep(0.2)
    own = _file(folder, f"{token}-{name}")
    try:
        own.write_text(token)
        own.unlink()
    except OSError as error:
        return f"cannot be written: {(error.strerror or str(error)).lower()}"
    return ""


def uproot(folder: str, token: str, made: Sequence[str]) -> None:
    """Take the file away, and the folders that were made for it if nothing else came into them."""
    with suppress(OSError):
        _file(folder, token).unlink()
    for place in made:
        with suppress(OSError):  # not empty: a run has begun to use it
            os.rmdir(place)


def _file(folder: str, token: str) -> Path:
    return Path(folder) / f".laurel-probe-{token}"


def judge_shared(
    field: str, folder: str, writer: tuple[str, Planted], seen: Mapping[str, str], *, together: bool
) -> list[Finding]:
    """``seen``: what the others found of the file that ``writer`` left. ``together``: a run has ranks on several of
    these nodes, so that a checkpoint's parts would lie apart."""
    name, planted = writer
    where = f"{field}={folder}"
    if planted.problem:
        cure = "give a folder that every node may write to"
        return [Finding("checkpoints", "error", name, f"{where} cannot be written: {planted.problem}", cure)]
    found = []
    severity: Severity = "error" if together else "warning"
    for other, problem in seen.items():
        if problem == MISSING:
            what = f"{where} is not the folder that {name} writes to: a file left there does not appear"
            cure = f"set {field} to a folder on a disk that all nodes share and mount at the same path"
            found.append(Finding("checkpoints", severity, other, what, cure))
        elif problem:
            cure = "give the user that runs Ray there the right to write to it, or name another folder"
            found.append(Finding("checkpoints", severity, other, f"{where} {problem}", cure))
    return found
