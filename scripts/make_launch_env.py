"""Make what some tests need beside .venv: system packages (Slurm, sshd, bubblewrap, ...) and the environments of .envs.

All of it is optional. What cannot be had is said, with its reason in ``.envs/NAME.missing``, and the tests that need it
are skipped with that reason. Each part carries a stamp of its inputs, so that a second call does nothing.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import time
import venv
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from make_env import ROOT, say

ENVS = ROOT / ".envs"
# What a program is called, and the Debian package that has it.
PROGRAMS = {
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "sbatch": "slurm-client",
    "munged": "munge",
    "sshd": "openssh-server",
    "ssh": "openssh-client",
    "rsync": "rsync",
    "ip": "iproute2",
    "bwrap": "bubblewrap",
}
SKYPILOT = "0.14.1"
# Each program in an environment of its own: their dependencies and ours do not fit together.
ENVIRONMENTS = {
    "skypilot": [f"skypilot[slurm]=={SKYPILOT}", "uv"],
    "dstack": ["dstack[server]==0.22.5"],
}
# What SkyPilot installs on the nodes of a cluster, with the Python 3.10 that it insists on.
WHEELS = [f"skypilot[slurm,remote]=={SKYPILOT}", "uv", "pip", "setuptools", "wheel"]
LIMIT_S = 900


class Unavailable(Exception):
    """Why a part cannot be had here."""


def main() -> int:
    """Always 0: `make test` goes on without what is missing."""
    ENVS.mkdir(exist_ok=True)
    parts: dict[str, tuple[list[str], Callable[[], None]]] = {
        "system": (sorted(PROGRAMS), install_programs),
        **{name: (words, lambda name=name: make_environment(name)) for name, words in ENVIRONMENTS.items()},
        "wheels": (WHEELS, download_wheels),
    }
    wanted = {name: make for name, (inputs, make) in parts.items() if not stamp(name, inputs).exists()}
    if wanted:
        say(f"making what the launch tests need: {', '.join(wanted)} (in .envs; minutes the first time)")
    with ThreadPoolExecutor(max_workers=2) as pool:
        reasons = dict(zip(wanted, pool.map(attempt, wanted.values()), strict=True))
    for name, reason in reasons.items():
        missing = ENVS / f"{name}.missing"
        if reason:
            missing.write_text(reason + "\n")
            say(f"without {name}, tests that need it will be skipped: {reason}")
        else:
            missing.unlink(missing_ok=True)
            stamp(name, parts[name][0]).touch()
    return 0


def stamp(name: str, inputs: list[str]) -> Path:
    return ENVS / f"{name}-{hashlib.sha256(' '.join(inputs).encode()).hexdigest()[:12]}"


def attempt(make: Callable[[], None]) -> str:
    """Why it failed; empty if it did not."""
    try:
        make()
    except (Unavailable, OSError, subprocess.SubprocessError) as error:
        return str(error)
    return ""


def run(command: list[str], **more: object) -> None:
    """Errors: Unavailable with the last lines that the command said."""
    try:
        done = subprocess.run(  # type: ignore[call-overload]
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=LIMIT_S, **more
        )
    except subprocess.TimeoutExpired:
        raise Unavailable(f"`{' '.join(command[:6])} ...` took more than {LIMIT_S} s") from None
    if done.returncode != 0:
        lines = [line for line in done.stdout.splitlines() if line.strip()][-3:]
        raise Unavailable(f"`{' '.join(command[:6])} ...` failed: {' | '.join(lines)}")


def install_programs() -> None:
    """By apt, where we are root on a Debian; nothing if all are here."""
    packages = [package for program, package in PROGRAMS.items() if find(program) is None]
    if not packages:
        return
    if shutil.which("apt-get") is None:
        raise Unavailable(f"no apt-get here to install {' '.join(packages)}")
    if os.geteuid() != 0:
        raise Unavailable(f"needs root: apt-get install --no-install-recommends {' '.join(packages)}")
    say(f"apt-get install {' '.join(packages)}")
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    run(["apt-get", "update", "-q"], env=quiet)
    run(["apt-get", "install", "-q", "-y", "--no-install-recommends", *packages], env=quiet)


def find(program: str) -> str | None:
    """Also where a user's PATH does not look."""
    return shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


def make_environment(name: str) -> None:
    started = time.monotonic()
    folder = ENVS / name
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
    run([str(python), "-m", "pip", "--disable-pip-version-check", "install", "--quiet", *ENVIRONMENTS[name]])
    say(f"{name}: made in {time.monotonic() - started:.0f} s")


def download_wheels() -> None:
    started = time.monotonic()
    python = python310()
    if python is None:
        raise Unavailable("SkyPilot's runtime on the nodes needs a python3.10, which is neither on PATH nor with pyenv")
    folder = ENVS / "wheels"
    folder.mkdir(exist_ok=True)
    loader = ENVS / "python3.10"  # not every python3.10 has a pip that is new enough
    if not (loader / "bin" / "python").exists():
        run([python, "-m", "venv", str(loader)])
    pip = [str(loader / "bin" / "python"), "-m", "pip", "--disable-pip-version-check"]
    run([*pip, "download", "--quiet", "--dest", str(folder), *WHEELS])
    say(f"wheels: {len(list(folder.iterdir()))} files in {time.monotonic() - started:.0f} s")


def python310() -> str | None:
    """A Python 3.10 that starts: from pyenv's own folder (its shims refuse unless chosen), or the one on PATH."""
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    found = [str(path) for path in sorted(root.glob("versions/3.10.*/bin/python3.10"))]
    for python in [*found, shutil.which("python3.10")]:
        if python and subprocess.run([python, "-c", ""], capture_output=True, check=False).returncode == 0:
            return python
    return None


if __name__ == "__main__":
    sys.exit(main())
