"""What `ray job submit` would send, by Ray's own rules, before it sends it.

Ray refuses packages above a limit only after it has zipped them, and then does not say which files are the large ones.
"""

from __future__ import annotations

import logging
from pathlib import Path

import yaml
from ray._private.runtime_env import packaging

from laurel.types import LaurelError

_SHOWN = 5


def check_upload(runtime_env: Path) -> int:
    """Bytes of the folder that ``working_dir`` names. Raises LaurelError that names the largest files if Ray would
    refuse them (the limit is on the zipped package; files count here as they are)."""
    try:
        settings = yaml.safe_load(runtime_env.read_text()) or {}
    except (OSError, yaml.YAMLError) as error:
        raise LaurelError(f"--runtime-env={runtime_env} cannot be read: {error}") from error
    folder = settings.get("working_dir")
    if folder is None or "://" in str(folder):
        return 0
    root = Path(folder).expanduser().absolute()
    if not root.is_dir():
        raise LaurelError(f"--runtime-env={runtime_env}: working_dir {folder} is no folder (from {Path.cwd()})")
    sizes: dict[Path, int] = {}

    def note(path: Path) -> None:
        if path.is_file():
            sizes[path.relative_to(root)] = path.stat().st_size

    excludes = [packaging._get_excludes(root, list(settings.get("excludes") or []))]
    packaging._dir_travel(root, excludes, note, include_gitignore=True, logger=_Quiet(__name__))
    total, limit = sum(sizes.values()), packaging.GCS_STORAGE_MAX_SIZE
    if total >= limit:
        largest = sorted(sizes.items(), key=lambda pair: -pair[1])[:_SHOWN]
        named = ", ".join(f"{path} ({size / 2**20:.0f} MiB)" for path, size in largest)
        raise LaurelError(
            f"{root} has {total / 2**20:.0f} MiB to send, Ray takes {limit / 2**20:.0f}; the largest: {named}. Move "
            f"them elsewhere, or name them under excludes in {runtime_env} or in a file .rayignore"
        )
    return total


class _Quiet(logging.Logger):
    """Ray's walk tells which ignore files it reads, which is no news here; what it cannot read is an error."""

    def info(self, *_words: object, **_more: object) -> None:
        return

    def error(self, msg: object, *_words: object, **_more: object) -> None:
        raise LaurelError(str(msg))
