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


def available_memory(meminfo: Path = Path("/proc/meminfo")) -> int:
    """Bytes that processes may still take, caches that the system would drop included; half of all where unknown."""
    try:
        fields = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
        return int(fields["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


def gpu_memory(environ: Mapping[str, str] | None = None) -> int | None:
    """Bytes of the smallest NVIDIA GPU that a process started now would see; None where the driver's tool is not."""
    environ = os.environ if environ is None else environ
    tool, visible = shutil.which("nvidia-smi"), environ.get("CUDA_VISIBLE_DEVICES")
    if tool is None or visible == "":
        return None
    command = [tool, "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    if visible is not None:
        command.append(f"--id={visible}")
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=NVIDIA_SMI_TIMEOUT, check=False)
        return min((int(line) << 20 for line in answer.stdout.splitlines()), default=None)
    except (OSError, subprocess.TimeoutExpired, ValueError):
        return None


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
