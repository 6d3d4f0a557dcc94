"""Whether the Hugging Face hub can be reached, asked once and quickly: its own client retries for about a minute."""

from __future__ import annotations

import functools
import os
import urllib.error
import urllib.request

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
