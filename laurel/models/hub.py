"""The Hugging Face hub: whether it can be reached, asked once and quickly (its own client retries for about a minute),
and fetching a model once per node before any process of the run needs it."""

from __future__ import annotations

import functools
import os
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

# Everything that loading may ask for, and not the copies in other formats that some repositories hold beside it.
_WANTED = ["*.json", "*.safetensors", "*.model", "*.txt", "*.jinja", "*.py"]
PROBE_SECONDS = 5.0


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


def fetch(path: str, *, say: Callable[[str], None] = print) -> None:
    """Bring the files of a hub id into this node's Hugging Face cache; nothing to do for a folder, or offline.

    The hub's client locks each file, so processes that need it at once download it once. Raises what the client raises.
    """
    if Path(path).expanduser().is_dir() or not hub_answers():
        return
    from huggingface_hub import snapshot_download

    say(f"fetching {path} into this node's Hugging Face cache, unless it is there")
    snapshot_download(path, allow_patterns=_WANTED)
