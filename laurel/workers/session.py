"""Joining the Ray that runs, or starting one for this process alone.

In order: an ``address`` in ``ray_kwargs.ray_init``; RAY_ADDRESS, which Ray sets inside a submitted job; a cluster that
this user started by hand on this machine (``ray start``); else a Ray of our own, which ends with the session.
"""

from __future__ import annotations

import logging
import os
import secrets
import shutil
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

import ray

from laurel.types import LaurelError
from laurel.workers.raylets import AUTH_VARIABLES, Raylet, hand_started_cluster, running_raylets, short_temp_dir

# One token per process: Ray keeps the first one it reads, so a second session must present the same.
_TOKEN = secrets.token_hex(32)

Say = Callable[[str], None]


class RaySession:
    """A connection to Ray. ``started`` says whether Ray is ours alone, so that nobody else can join nodes to it.

    Use it as a context manager: leaving it ends only what it started.
    """

    def __init__(self, ray_init: Mapping[str, Any] | None = None, *, say: Say = print):
        """Errors: LaurelError if the cluster that was named cannot be joined."""
        self._environment: dict[str, str | None] = {}
        self._folder: Path | None = None
        self._owner = True
        self.started = False
        if ray.is_initialized():  # a program around us (a notebook, a test) holds a connection: use it, leave it
            self._owner = False
        else:
            arguments = dict(ray_init or {})
            address = choose_address(arguments.pop("address", None), say=say)
            try:
                self._start(arguments) if address is None else self._join(address, arguments, say)
            except BaseException:
                self.close()
                raise
        self.address: str = ray.get_runtime_context().gcs_address
        say(f"{'Started' if self.started else 'Joined'} Ray {ray.__version__} at {self.address}")

    def __enter__(self) -> RaySession:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(keep_logs=error is not None)

    def close(self, *, keep_logs: bool = False) -> None:
        """Disconnect; stop Ray if this session started it. ``keep_logs`` leaves Ray's logs for a post-mortem."""
        if self._owner and ray.is_initialized():
            ray.shutdown()
        if self._folder is not None:
            (self._folder / "token").unlink(missing_ok=True)
            if not keep_logs:
                shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None
        for name, value in self._environment.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        self._environment = {}

    def _start(self, arguments: dict[str, Any]) -> None:
        """A Ray for this process alone.

        Authentication: Ray listens on every interface, so it asks for a token unless the user chose otherwise. With
        RAY_AUTH_MODE unset Ray would write ~/.ray/auth_token, which turns authentication on in every later `ray start`
        and breaks command-line clients; a token of our own, readable by this user only and gone with the session,
        touches nothing else.
        """
        self._folder = short_temp_dir()
        self._set("RAY_USAGE_STATS_ENABLED", "0")
        self._set("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # num_gpus=0 leaves CUDA_VISIBLE_DEVICES alone, quietly
        if "RAY_AUTH_MODE" not in os.environ:
            token = self._folder / "token"
            with open(os.open(token, os.O_CREAT | os.O_WRONLY, 0o600), "w") as file:
                file.write(_TOKEN)
            self._set("RAY_AUTH_MODE", "token")
            self._set("RAY_AUTH_TOKEN_PATH", str(token))
        refresh_authentication()
        defaults: dict[str, Any] = {
            "include_dashboard": False,
            "logging_level": logging.WARNING,
            "log_to_driver": False,  # worker output stays in its log; errors come back with the last lines of it
            "num_cpus": usable_cores(),
            "object_store_memory": object_store_bytes(),
            "_temp_dir": str(self._folder / "r"),  # Ray opens its folder to everybody; ours around it stays private
            # Ray would start an idle Python process per core, which nobody uses.
            "_system_config": {"prestart_worker_first_driver": False},
        }
        with _deaf_to_usr1():
            ray.init(address="local", **(defaults | arguments))
        self.started = True

    def _join(self, address: str, arguments: dict[str, Any], say: Say) -> None:
        for name, value in adopted_authentication(address, running_raylets(), os.environ).items():
            self._set(name, value)
        refresh_authentication()
        if os.environ.get("RAY_AUTH_MODE", "disabled") != "token":
            say(
                f"warning: the Ray at {address} asks for no token: whoever reaches its ports can run code there. Start "
                "its nodes with RAY_AUTH_MODE=token (docs/multinode.md)"
            )
        defaults: dict[str, Any] = {"logging_level": logging.WARNING, "log_to_driver": False}
        try:
            ray.init(address=address, **(defaults | arguments))
        except (ConnectionError, RuntimeError, ray.exceptions.AuthenticationError) as error:
            raise LaurelError(
                f"cannot join Ray at {address}: {str(error).strip()}. Check that `ray status --address={address}` "
                "answers on this machine, that this machine is one of its nodes (`ray start --address=...`), and that "
                "RAY_AUTH_MODE is the cluster's; or unset RAY_ADDRESS to start Ray here"
            ) from error

    def _set(self, name: str, value: str) -> None:
        self._environment.setdefault(name, os.environ.get(name))
        os.environ[name] = value


@contextmanager
def _deaf_to_usr1() -> Iterator[None]:
    """Ray's processes, started within it, ignore SIGUSR1: a scheduler sends it to all processes of a job to have the
    training save, which needs them."""
    if threading.current_thread() is not threading.main_thread():  # elsewhere Python may not say so
        yield
        return
    before = signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR1, before)


def choose_address(given: str | None, *, say: Say = print) -> str | None:
    """The cluster to join, or None to start one. ``given`` is ``ray_kwargs.ray_init.address``."""
    wanted, source = given, "ray_kwargs.ray_init.address"
    if not wanted:
        wanted, source = os.environ.get("RAY_ADDRESS", ""), "RAY_ADDRESS"
    if wanted == "local":
        return None
    if wanted.startswith("ray://"):
        raise LaurelError(
            f"{source}={wanted}: Laurel does not run through the Ray client; submit it as a job or use host:port"
        )
    if wanted.startswith(("http://", "https://")):  # what `ray job submit` wants in the same variable
        say(f"{source}={wanted} is the address for jobs, not of the cluster; looking for the cluster on this machine")
    elif wanted not in ("", "auto"):
        return wanted
    mine = hand_started_cluster(running_raylets(), os.geteuid())
    if mine is None and wanted == "auto":
        raise LaurelError(
            f"{source}=auto: you run no Ray cluster on this machine; start one (`ray start --head`) or unset it"
        )
    return mine.address if mine else None


def adopted_authentication(address: str, raylets: list[Raylet], environment: Mapping[str, str]) -> dict[str, str]:
    """The RAY_AUTH_* variables to set so that this process speaks as the cluster at ``address`` does.

    What the user set stands. Otherwise the raylet of this machine (a driver needs one) says it; a raylet without
    RAY_AUTH_MODE runs without authentication. Nothing to adopt if its environment may not be read.
    """
    if "RAY_AUTH_MODE" in environment:
        return {}
    auth = next((raylet.auth for raylet in raylets if raylet.address == address and raylet.auth is not None), None)
    if auth is None:
        return {}
    inherited = {name: auth[name] for name in AUTH_VARIABLES if name in auth and name not in environment}
    return {"RAY_AUTH_MODE": "disabled"} | inherited


def usable_cores() -> int:
    """Cores that this process may use: its affinity, and the quota of its control group where there is one."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return max(1, min(cores, int(quota) // int(period)))
    except (OSError, ValueError):  # no such control group, or "max": no quota
        return cores


def object_store_bytes(shared_memory: Path = Path("/dev/shm")) -> int:
    """Ray's object store: a tenth of the memory, 256 MiB to 8 GiB, within what shared memory offers.

    Batches of token ids pass through it, a few hundred MB at most; Ray's own default is 30 % of the memory.
    """
    wanted = min(max(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 10, 256 << 20), 8 << 30)
    try:
        return max(80 << 20, min(wanted, int(shutil.disk_usage(shared_memory).free * 0.9)))
    except OSError:
        return wanted


def refresh_authentication() -> None:
    """Make this process read RAY_AUTH_MODE again: Ray caches its settings when it is imported."""
    try:
        from ray._raylet import AuthenticationTokenLoader, Config  # type: ignore[attr-defined]
    except ImportError:  # Ray without token authentication
        return
    Config.initialize("")
    AuthenticationTokenLoader.instance().reset_cache()
