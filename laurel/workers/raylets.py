"""Which Ray clusters run on this machine, read from /proc: address, owner and authentication of each raylet.

Ray's own discovery joins whatever it finds. A machine may be shared, so Laurel looks at who owns the processes, and
reads the cluster's authentication where it is certain to stand: in the environment that its raylet was started with.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from laurel.types import LaurelError

AUTH_VARIABLES = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")


@dataclass(frozen=True)
class Raylet:
    """One raylet process. ``auth`` holds its RAY_AUTH_* variables, None where its environment may not be read."""

    address: str
    uid: int
    auth: Mapping[str, str] | None = field(default=None, repr=False)


def running_raylets(proc: Path = Path("/proc")) -> list[Raylet]:
    """Every raylet of this machine (of this container); empty where there is no /proc."""
    found = []
    for folder in sorted(proc.glob("[0-9]*")):
        try:
            command = (folder / "cmdline").read_bytes().split(b"\0")
            if not command[0].endswith(b"raylet"):
                continue
            uid = folder.stat().st_uid
        except OSError:  # the process ended while we looked
            continue
        address = _flag(command, b"--gcs-address=")
        if address:
            found.append(Raylet(address, uid, _auth(folder / "environ")))
    return found


def hand_started_cluster(raylets: Sequence[Raylet], uid: int) -> Raylet | None:
    """The cluster that ``ray start`` last recorded on this machine, if it is alive and belongs to ``uid``.

    Ray writes the address of clusters started by hand to ray_current_cluster, and leaves it there when they die; one
    that another driver started for itself is not recorded and so is never joined.
    """
    try:
        address = current_cluster_file().read_text().strip()
    except OSError:
        return None
    return next((raylet for raylet in raylets if raylet.address == address and raylet.uid == uid), None)


@contextmanager
def recorded_cluster(address: str) -> Iterator[None]:
    """While it lasts, ``address`` is this machine's cluster started by hand: for ``ray`` commands and for Laurel.

    ``ray start`` records it only if its folder is Ray's own. Raises LaurelError if the file may not be written.
    """
    file = current_cluster_file()
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(address)
    except OSError as error:
        raise LaurelError(
            f"cannot record the cluster in {file}: {error}; set RAY_TMPDIR to a folder of your own"
        ) from error
    try:
        yield
    finally:
        with suppress(OSError):
            if file.read_text() == address:
                file.unlink()


def current_cluster_file() -> Path:
    """Where ``ray start`` records the address of its cluster, by the same variables that Ray reads."""
    root = os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp"
    return Path(root) / "ray" / "ray_current_cluster"


def short_temp_dir() -> Path:
    """A new private folder whose path is short enough for the sockets that Ray puts below it.

    A socket's path holds at most 107 bytes, and Ray adds about 65 to the folder's own.
    """
    root = tempfile.gettempdir()
    return Path(tempfile.mkdtemp(prefix="laurel-", dir=root if len(os.fsencode(root)) <= 20 else "/tmp"))


@dataclass(frozen=True)
class NodeOptions:
    """How the raylet of one node was started. ``store`` is the folder of its objects and ``store_bytes`` how large they
    may become; ``visible`` is its CUDA_VISIBLE_DEVICES, None if unset or if its environment may not be read."""

    folder: str = ""
    store: str = ""
    store_bytes: int = 0
    visible: str | None = None


def node_options(node_id: str, proc: Path = Path("/proc")) -> NodeOptions:
    """Of the raylet of node ``node_id``, which must run on this machine; all empty if it is not seen from here."""
    for entry in proc.glob("[0-9]*"):
        try:
            command = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:  # the process ended while we looked
            continue
        if not command[0].endswith(b"raylet") or _flag(command, b"--node_id=") != node_id:
            continue
        size = _flag(command, b"--object_store_memory=")
        return NodeOptions(
            folder=_flag(command, b"--temp_dir="),
            store=_flag(command, b"--plasma_directory="),
            store_bytes=int(size) if size.isdigit() else 0,
            visible=(_variables(entry / "environ") or {}).get("CUDA_VISIBLE_DEVICES"),
        )
    return NodeOptions()


def _flag(command: Sequence[bytes], name: bytes) -> str:
    return next((part[len(name) :].decode() for part in command if part.startswith(name)), "")


def _auth(environ: Path) -> dict[str, str] | None:
    variables = _variables(environ)
    return None if variables is None else {name: variables[name] for name in AUTH_VARIABLES if name in variables}


def _variables(environ: Path) -> dict[str, str] | None:
    """Of a process; None where they may not be read."""
    try:
        entries = environ.read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return None
    return dict(entry.partition("=")[::2] for entry in entries)
