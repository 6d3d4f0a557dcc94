"""What this machine has, found without torch."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

NVIDIA_SMI_TIMEOUT = 2.0  # seconds; a driver that hangs must not hold up the start


def visible_gpus(environ: Mapping[str, str] | None = None, devices: Path = Path("/dev")) -> int:
    """NVIDIA GPUs that a process started now would see: those of the machine, cut by CUDA_VISIBLE_DEVICES."""
    environ = os.environ if environ is None else environ
    present = sum(1 for path in devices.glob("nvidia[0-9]*") if path.name.removeprefix("nvidia").isdigit())
    if not present:
        present = _listed_by_nvidia_smi()
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if not present or visible is None:
        return present
    count = 0
    for name in (part.strip() for part in visible.split(",")):
        # As CUDA does: the list ends at the first name that is no device.
        if not name or name.startswith("-") or (name.isdigit() and int(name) >= present):
            break
        count += 1
    return count


def _listed_by_nvidia_smi() -> int:
    """Where devices have no /dev/nvidiaN (WSL), the driver's tool still lists them."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return 0
    try:
        listing = subprocess.run([tool, "-L"], capture_output=True, text=True, timeout=NVIDIA_SMI_TIMEOUT, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return 0
    return sum(line.startswith("GPU ") for line in listing.stdout.splitlines())
