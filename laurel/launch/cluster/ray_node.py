"""This node's Ray: started with ports of its own, in a private folder, asking for the job's token."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from laurel.launch.cluster import processes
from laurel.launch.cluster.ports import Block
from laurel.launch.cluster.secret import VARIABLE, ray_token
from laurel.types import LaurelError
from laurel.workers.raylets import short_temp_dir
from laurel.workers.session import object_store_bytes, usable_cores

START_S = 180.0
_UP = "Ray runtime started"


class RayNode:
    """Ray of one node and its folder, which is gone after ``end`` unless the logs are kept."""

    def __init__(self, token: str):
        self.folder = short_temp_dir()
        self.process: subprocess.Popen[bytes] | None = None
        self._log = self.folder / "ray-start.log"
        file = self.folder / "token"
        with open(os.open(file, os.O_CREAT | os.O_WRONLY, 0o600), "w") as private:
            private.write(ray_token(token))
        self.environ = ray_environment(os.environ, file)

    def start(self, words: list[str], block: Block, *, address: str, gpus: int, cores: int = 0) -> None:
        """``words`` make it the head or name the head."""
        command = [
            *(os.path.join(os.path.dirname(sys.executable), "ray"), "start", *words, "--block"),
            f"--node-ip-address={address}",
            f"--num-cpus={cores or usable_cores()}",
            f"--num-gpus={gpus}",
            f"--object-store-memory={object_store_bytes()}",
            f"--temp-dir={self.folder / 'r'}",
            "--disable-usage-stats",
            *block.node_flags(),
        ]
        with self._log.open("wb") as log:
            self.process = processes.start(command, self.environ, log)

    def wait_until_up(self, given_up: Callable[[], bool]) -> None:
        """Raises LaurelError with Ray's last lines if it ends or is not up within START_S; returns early if
        ``given_up``."""
        assert self.process is not None
        deadline = time.monotonic() + START_S
        while _UP not in self._said() and not given_up():
            if self.process.poll() is not None:
                raise LaurelError(f"Ray ended with {self.process.returncode} while it started: {self.last_lines()}")
            if time.monotonic() > deadline:
                raise LaurelError(f"Ray did not start within {START_S:.0f} s: {self.last_lines()}")
            time.sleep(0.1)

    def ended(self) -> bool:
        return self.process is not None and self.process.poll() is not None

    def last_lines(self, count: int = 8) -> str:
        lines = [line.strip() for line in self._said().splitlines() if line.strip()]
        return " | ".join(lines[-count:])

    def end(self, *, keep_logs: bool = False, grace_s: float = 2.0) -> None:
        """End Ray on this node and everything that came from it."""
        if self.process is not None:
            processes.end(self.process, grace_s)
        processes.end_descendants()
        (self.folder / "token").unlink(missing_ok=True)
        if not keep_logs:
            shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def logs(self) -> Path:
        return self.folder / "r" / "session_latest" / "logs"

    def _said(self) -> str:
        try:
            return self._log.read_text(errors="replace")
        except OSError:
            return ""


def ray_environment(environ: Mapping[str, str], token_file: Path) -> dict[str, str]:
    """Variables of the job's Ray and training: the platform's own Ray and the job's secret are none of theirs."""
    dropped = {VARIABLE, "RAY_ADDRESS", "RAY_AUTH_TOKEN", "RAY_NAMESPACE", "RAY_JOB_ID"}
    kept = {name: value for name, value in environ.items() if name not in dropped}
    return kept | {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(token_file),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    }
