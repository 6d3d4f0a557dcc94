"""A process of the scoring pool: it loads the reward function once, then scores what it is sent until nobody sends.

``python -m laurel.rewards.scoring_process FD``: FD is its end of a connection, on which the configuration comes first.
It answers None once it is ready, or why it cannot be, then ``(value, extras)`` or a reason for each ScoringTask.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from dataclasses import dataclass
from multiprocessing.connection import Connection

from laurel.config.tree import Config
from laurel.rewards.reward_fn import RewardError, RewardFn, load_reward_fn
from laurel.types import LaurelError, Prompt

PR_SET_PDEATHSIG = 1
Answer = tuple[float, dict[str, float]] | str


@dataclass(frozen=True)
class ScoringTask:
    """The arguments of ``RewardFn.score``."""

    text: str
    prompt: Prompt
    sample: int
    length: int


def main(connection: Connection, parent: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            return  # it was killed before we asked to be told
    sys.breakpointhook = _no_debugger
    config: Config = connection.recv()
    try:
        reward = load_reward_fn(config)
    except LaurelError as error:
        connection.send(str(error))
        return
    connection.send(None)
    while True:
        try:
            task: ScoringTask = connection.recv()
        except EOFError:
            return
        connection.send(answer(reward, task))


def _no_debugger(*_: object, **__: object) -> None:
    raise LaurelError("breakpoint(): no debugger reaches a scoring process; set reward.num_workers=0 to stop there")


def answer(reward: RewardFn, task: ScoringTask) -> Answer:
    try:
        score = reward.score(task.text, task.prompt, task.sample, length=task.length)
    except RewardError as error:
        return str(error)
    except SystemExit as error:  # a function that ends the process has not scored
        return f"row {task.prompt.index}, sample {task.sample}: the reward function called sys.exit({error.code})"
    return score.value, dict(score.extras)


if __name__ == "__main__":
    main(Connection(int(sys.argv[1])), int(sys.argv[2]))
