"""Models by hub id: fetched once per node under a lock, and found again in the cache without asking anybody.

Whether the hub can be reached is asked once and quickly: its own client retries for about a minute.
"""

from __future__ import annotations

import fcntl
import functools
import json
import os
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from laurel.config.tree import Model
from laurel.types import LaurelError

# Everything that loading may ask for, and not the copies in other formats that some repositories hold beside it.
_TOKENIZER = ("*.json", "*.model", "*.txt", "*.jinja", "*.tiktoken")
_WEIGHTS = ("*.safetensors",)
_OLDER_WEIGHTS = ("*.bin",)  # taken only where there are no safetensors
_CODE = ("*.py",)
_NOT = ("*/*", "consolidated*")
PROBE_SECONDS = 5.0
SAID_EVERY = 30.0  # seconds between lines while another process fetches
LONGEST_WAIT = 4 * 3600.0  # seconds; a large model over a slow line takes hours

Say = Callable[[str], object]
_fetched: dict[tuple[str, bool, bool], Path] = {}  # by this process, which need not ask the hub again


@functools.cache
def hub_answers() -> bool:
    """False if HF_HUB_OFFLINE is set or the hub (HF_ENDPOINT) does not answer within seconds. The answer is kept."""
    if os.environ.get("HF_HUB_OFFLINE", "0").upper() in ("1", "ON", "YES", "TRUE"):
        return False
    url = os.environ.get("HF_ENDPOINT", "https://huggingface.co")
    try:
        with urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=PROBE_SECONDS):
            return True
    except urllib.error.HTTPError:
        return True  # it answered
    except (OSError, ValueError):
        return False


def is_folder(path: str) -> bool:
    """Whether a model path is meant as a folder of this machine, and not as a hub id."""
    return path.startswith(("/", ".", "~")) or path.count("/") > 1 or Path(path).is_dir()


def fetch(model: Model, *, say: Say = print) -> str:
    """The folder of ``model.path`` on this node; a hub id is fetched unless the cache has it whole and up to date.

    Raises LaurelError that names the path and the cure: no such folder, no such model, no network.
    """
    path = _named(model.path)
    return str(_snapshot(path, code=model.trust_remote_code, weights=True, say=say))


def fetch_tokenizer(model: Model, *, say: Say = print) -> str:
    """Like ``fetch`` for the tokenizer's files alone, of ``model.tokenizer_path`` or else of ``model.path``."""
    path = _named(model.path if model.tokenizer_path is None else model.tokenizer_path)
    return str(_snapshot(path, code=model.trust_remote_code, weights=False, say=say))


def local_folder(path: str) -> Path | None:
    """Where a model's files lie on this machine, as far as is known without a network: the folder itself, or what the
    cache holds of a hub id, which may not be all of it. None if there is nothing."""
    folder = Path(path).expanduser()
    if is_folder(path):
        return folder if folder.is_dir() else None
    repository = _cache() / ("models--" + path.replace("/", "--"))
    try:
        commit = (repository / "refs" / "main").read_text().strip()
    except OSError:
        return None
    snapshot = repository / "snapshots" / commit
    return snapshot if snapshot.is_dir() else None


def published_config(model: Model) -> dict[str, Any] | None:
    """The model's config.json as it stands, without overrides; None if it is not on this machine.

    Raises OSError or ValueError if it is there and cannot be read.
    """
    folder = None if model.path is None else local_folder(model.path)
    if folder is None or not (folder / "config.json").is_file():
        return None
    fields = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    if not isinstance(fields, dict):
        raise ValueError("it holds no fields")
    return fields


def _named(path: str | None) -> str:
    if path is None:
        raise LaurelError("model.path=None: give a Hugging Face folder or hub id, actor_rollout_ref.model.path=...")
    return path


def _snapshot(path: str, *, code: bool, weights: bool, say: Say) -> Path:
    what = "model" if weights else "tokenizer"
    if is_folder(path):
        folder = Path(path).expanduser()
        if not folder.is_dir():
            raise LaurelError(
                f"{what} folder {path!r} does not exist; give an existing folder or a hub id such as Qwen/Qwen2.5-0.5B"
            )
        return folder
    if (path, code, weights) not in _fetched:
        _fetched[path, code, weights] = _from_hub(path, code=code, weights=weights, say=say)
    return _fetched[path, code, weights]


def _from_hub(path: str, *, code: bool, weights: bool, say: Say) -> Path:
    what = "model" if weights else "tokenizer"
    wanted = [*_TOKENIZER, *(_CODE if code else ()), *(_WEIGHTS if weights else ())]
    with _lock(path, say):
        known = local_folder(path)
        if known is None or (weights and not _has_weights(known)):
            if hub_answers():
                say(f"fetching {path} once on this node, into {_cache()}")
            elif known is None:
                raise LaurelError(
                    f"{what} {path!r} is not in this node's cache ({_cache()}), and the Hugging Face hub cannot be "
                    "reached (or HF_HUB_OFFLINE is set); check the network, or give a local folder"
                )
        folder = _download(what, path, wanted)
        if weights and not _has_weights(folder):
            folder = _download(what, path, [*wanted, *_OLDER_WEIGHTS])
    return folder


def _download(what: str, path: str, wanted: list[str]) -> Path:
    """What the hub's client makes of it; without a network, what the cache holds."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.utils import disable_progress_bars

    if not sys.stderr.isatty():
        disable_progress_bars()
    try:
        return Path(
            snapshot_download(
                path, allow_patterns=wanted, ignore_patterns=list(_NOT), local_files_only=not hub_answers()
            )
        )
    except (OSError, ValueError) as error:
        said = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise LaurelError(
            f"{what} {path!r} could not be fetched ({said}); check the name, your access (HF_TOKEN) and the network, "
            "or give a local folder"
        ) from error


def _has_weights(folder: Path) -> bool:
    return any(next(folder.glob(pattern), None) for pattern in (*_WEIGHTS, *_OLDER_WEIGHTS))


def _cache() -> Path:
    """The folder of the hub's client, found as it finds it."""
    home = os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface"
    given = os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE")
    return Path(os.path.expandvars(given or Path(home) / "hub")).expanduser()


@contextmanager
def _lock(path: str, say: Say) -> Iterator[None]:
    """One process of this node at a time; the kernel lets go of the lock if its holder dies."""
    folder = _cache() / ".locks" / "laurel"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:  # a cache that others fill and we only read
        folder = Path("~/.cache/laurel/locks").expanduser()
        folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"{path.replace('/', '--')}.lock").open("w") as file:
        start = said = time.monotonic()
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                now = time.monotonic()
                if now - start > LONGEST_WAIT:
                    raise LaurelError(
                        f"another process has been fetching {path} for {LONGEST_WAIT:.0f} s ({file.name}); end it, or "
                        "give a local folder"
                    ) from None
                if now - said >= SAID_EVERY:
                    said = now
                    say(f"Waiting {now - start:.0f} s for another process of this node to fetch {path}")
                time.sleep(0.2)
        yield
