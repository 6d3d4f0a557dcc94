"""Scores trajectories in processes of their own, each within limits of time and memory.

What hangs, crashes or raises there costs one sample its score and nothing else: its process is killed with whatever it
started, and a new one takes its place.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import Future
from dataclasses import dataclass
from multiprocessing import Pipe
from pathlib import Path
from typing import Protocol

from laurel.config.tree import Config
from laurel.rewards.reward_fn import RewardError, RewardFn
from laurel.rewards.scoring_process import ScoringTask
from laurel.types import Prompt, Score, Unscored, UnscoredKind

START_S = 300.0  # for importing the reward function
TICK_S = 0.2  # between looks at the memory
MOST_PROCESSES = 8
PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class Scored:
    """What became of one trajectory, and how long scoring it took, waiting for a process not included."""

    result: Score | Unscored
    seconds: float


class Scorer(Protocol):
    async def score(self, text: str, prompt: Prompt, sample: int, *, length: int) -> Scored:
        """As RewardFn.score, but a failure is a result. Raises RewardError if nothing can be scored at all."""

    def close(self) -> None: ...


class InThisProcess:
    """Scores in the caller's thread: no limits, and nothing else goes on meanwhile."""

    def __init__(self, reward: RewardFn):
        self._reward = reward

    async def score(self, text: str, prompt: Prompt, sample: int, *, length: int) -> Scored:
        began = time.monotonic()
        result: Score | Unscored
        try:
            result = self._reward.score(text, prompt, sample, length=length)
        except RewardError as error:
            result = Unscored("error", str(error))
        return Scored(result, time.monotonic() - began)

    def close(self) -> None:
        pass


def build_scorer(config: Config, reward: RewardFn, *, cores: int) -> Scorer:
    """What reward.num_workers asks for; null is a process for each core, up to eight."""
    workers = config.reward.num_workers
    if workers == 0:
        return InThisProcess(reward)
    return ScoringPool(config, processes=min(cores, MOST_PROCESSES) if workers is None else workers)


class ScoringPool:
    """``processes`` of them, started with the first trajectory. Usable from several event loops, one after another."""

    def __init__(self, config: Config, *, processes: int):
        self._config, self._count = config, processes
        self._tasks: queue.SimpleQueue[tuple[ScoringTask, Future[Scored]] | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._processes: set[ScoringProcess] = set()
        self._closed = threading.Event()

    async def score(self, text: str, prompt: Prompt, sample: int, *, length: int) -> Scored:
        if not self._threads:
            self._threads = [
                threading.Thread(target=self._serve, name=f"scoring-{i}", daemon=True) for i in range(self._count)
            ]
            for thread in self._threads:
                thread.start()
        future: Future[Scored] = Future()
        self._tasks.put((ScoringTask(text, prompt, sample, length), future))
        return await asyncio.wrap_future(future)

    def close(self) -> None:
        """Kill every process, also in the middle of a score. Who still awaits one gets a RewardError."""
        self._closed.set()
        for _ in self._threads:
            self._tasks.put(None)
        for process in list(self._processes):
            process.kill()
        for thread in self._threads:
            thread.join()
        self._threads = []

    def _serve(self) -> None:
        """One thread: takes tasks one by one to a process that it replaces when it had to be killed."""
        process: ScoringProcess | None = None
        while (item := self._tasks.get()) is not None:
            task, future = item
            if not future.set_running_or_notify_cancel():
                continue
            try:
                if self._closed.is_set():
                    raise RewardError("the scoring processes were closed")
                if process is None or not process.alive:
                    process = self._started()
                scored = process.score(task)
            except BaseException as error:  # whoever awaits the score gets it, whatever it is
                future.set_exception(error)
            else:
                future.set_result(scored)
        if process is not None:
            process.kill()

    def _started(self) -> ScoringProcess:
        process = ScoringProcess(self._config)
        self._processes = {other for other in self._processes if other.alive} | {process}
        if self._closed.is_set():
            process.kill()
        process.wait_until_ready()
        return process


class ScoringProcess:
    """One process, and this end of its connection. Used by one thread; only ``kill`` may come from another."""

    def __init__(self, config: Config):
        self._timeout, self._memory = config.reward.timeout, config.reward.memory_limit_mb << 20
        self._connection, theirs = Pipe()
        command = [sys.executable, "-m", "laurel.rewards.scoring_process", str(theirs.fileno()), str(os.getpid())]
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                env={**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)},
                start_new_session=True,
            )
        finally:
            theirs.close()
        self._config = config

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def wait_until_ready(self) -> None:
        """Raises RewardError if the process cannot score."""
        try:
            self._connection.send(self._config)
            if not self._connection.poll(START_S):
                self.kill()
                raise RewardError(f"a scoring process was not ready after {START_S:.0f} s; is its file slow?")
            problem = self._connection.recv()
        except (EOFError, OSError) as error:
            raise RewardError(f"a scoring process {self._ended()} before it was ready") from error
        if problem is not None:
            self.kill()
            raise RewardError(problem)

    def score(self, task: ScoringTask) -> Scored:
        began = time.monotonic()
        try:
            self._connection.send(task)
            while not self._connection.poll(min(TICK_S, max(0.0, began + self._timeout - time.monotonic()))):
                if time.monotonic() - began >= self._timeout:
                    return self._given_up("time", task, began, f"took more than reward.timeout={self._timeout:g} s")
                if self._resident() > self._memory:
                    limit = f"reward.memory_limit_mb={self._memory >> 20}"
                    return self._given_up("memory", task, began, f"took more than {limit} MiB")
            answer = self._connection.recv()
        except (EOFError, OSError):
            return self._given_up("crash", task, began, f"did not survive it: the process {self._ended()}")
        result = Unscored("error", answer) if isinstance(answer, str) else Score(*answer)
        return Scored(result, time.monotonic() - began)

    def kill(self) -> None:
        """With everything of its session; what the sandbox runs for it ends by itself when it is gone."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _given_up(self, kind: UnscoredKind, task: ScoringTask, began: float, why: str) -> Scored:
        self.kill()
        where = f"row {task.prompt.index} (data_source {task.prompt.data_source!r}, sample {task.sample})"
        return Scored(Unscored(kind, f"the reward function on {where} {why}"), time.monotonic() - began)

    def _resident(self) -> int:
        try:
            return int(Path(f"/proc/{self._process.pid}/statm").read_text().split()[1]) * PAGE
        except (OSError, IndexError):
            return 0  # it is gone, which its connection tells; or this system has no /proc

    def _ended(self) -> str:
        try:
            code = self._process.wait(5)
        except subprocess.TimeoutExpired:
            self.kill()
            return "closed its connection"
        return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
