"""The process that vLLM runs in, as seen from its parent."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Mapping
from multiprocessing.connection import Connection
from typing import Any

import torch

from laurel.rollout.vllm.messages import Abort, Call, Generate, Start

_LINES_KEPT = 30
_ENDS_WITHIN_S = 10.0
_NOT_INHERITED = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


class Child:
    """One process on ``device``, connected by a pair of sockets, so that no port is taken. ``file`` is inherited."""

    def __init__(self, device: torch.device, file: int | None):
        ours, theirs = socket.socketpair()
        files = [theirs.fileno(), *([] if file is None else [file])]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "laurel.rollout.vllm.process", str(theirs.fileno())],
            pass_fds=files,
            env=environment(os.environ, device, file),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C is the parent's to answer
            text=True,
            errors="replace",
        )
        theirs.close()
        self._connection = Connection(ours.detach())
        self._sending = threading.Lock()
        self._words: deque[str] = deque(maxlen=_LINES_KEPT)
        self._reader = threading.Thread(target=self._pass_on, name="vllm-output", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def send(self, message: Start | Generate | Abort | Call) -> None:
        """From any thread. What cannot be sent any more is lost: the receiving side finds out and says so."""
        with self._sending:
            try:
                self._connection.send(message)
            except OSError:
                self._process.poll()

    def receive(self, timeout_s: float | None = None) -> Any:
        """The next message. Raises EOFError when the process has ended, TimeoutError when none came in time."""
        try:
            if timeout_s is not None and not self._connection.poll(timeout_s):
                raise TimeoutError(f"it said nothing for {timeout_s:.0f} s")
            return self._connection.recv()
        except ConnectionError as error:
            raise EOFError("the connection broke") from error

    def last_words(self) -> str:
        """The last lines that it wrote."""
        self._reader.join(0 if self.alive else 2)
        return "\n".join(self._words)

    def obituary(self, cause: BaseException | None = None) -> str:
        """How it ended, with its last lines. Ends it if it has not."""
        try:
            code = self._process.wait(_ENDS_WITHIN_S if isinstance(cause, EOFError) else 0.1)
        except subprocess.TimeoutExpired:
            self.end()
            return f"process {self.pid} was ended, since {cause}. Its last words:\n{self.last_words()}"
        how = f"by signal {-code}" if code < 0 else f"with code {code}"
        return f"process {self.pid} ended {how}. Its last words:\n{self.last_words()}"

    def end(self) -> None:
        """Close the connection, which it ends at; kill it if it does not."""
        with self._sending:
            # A thread may be reading, which closing alone does not wake
            socket.socket(fileno=os.dup(self._connection.fileno())).shutdown(socket.SHUT_RDWR)
        try:
            self._process.wait(_ENDS_WITHIN_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _pass_on(self) -> None:
        """What it writes goes to our stderr, and the last lines are kept."""
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                self._words.append(line.rstrip())
                print(line, end="", file=sys.stderr)


def environment(ours: Mapping[str, str], device: torch.device, file: int | None) -> dict[str, str]:
    """The variables of the process: its one GPU, threads, and what vLLM takes from there alone."""
    theirs = {name: value for name, value in ours.items() if name not in _NOT_INHERITED}
    theirs |= {
        "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path),
        "PYTHONUNBUFFERED": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the process is vLLM's alone: one more would only add copies
        "VLLM_USE_V2_MODEL_RUNNER": "0",  # which has no sampler that can be replaced
        "VLLM_ALLOW_INSECURE_SERIALIZATION": "1",  # parcels go from the process to its own workers
        "VLLM_HOST_IP": "127.0.0.1",
        "VLLM_NO_USAGE_STATS": "1",
    }
    theirs.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    if file is not None:
        theirs["LAUREL_WEIGHTS_FILE"] = str(file)
    if device.type == "cuda":
        theirs["CUDA_VISIBLE_DEVICES"] = f"GPU-{torch.cuda.get_device_properties(device).uuid}"
        # Its sleep mode has a pool of its own, which growing segments do not work with
        for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
            theirs.pop(name, None)
    else:
        theirs.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
        theirs["VLLM_TARGET_DEVICE"] = "cpu"
    return theirs
