"""What of the driver's environment its ranks get."""

from __future__ import annotations

import os


def passed_environment() -> dict[str, str]:
    """Variables of this process that decide what ranks find and say: where models lie, and how libraries behave.

    Ray gives a rank the environment of its node's raylet, which on a cluster started by hand is another shell's.
    """
    prefixes = ("HF_", "TRANSFORMERS_", "NCCL_", "GLOO_", "TORCH_", "PYTORCH_", "LAUREL_", "RAY_DEBUG")
    return {name: value for name, value in os.environ.items() if name.startswith(prefixes)}
