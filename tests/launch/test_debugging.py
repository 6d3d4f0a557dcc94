"""docs/debugging.md, done: debuggers attach to rewards, learners and engines; stacks and the causes of failures."""

import asyncio
import os
import re
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import ray
import torch

from launch.dap import Debugger
from launch.debugged import PausedRank
from laurel.batch.token_batch import TokenBatch
from laurel.config.load import load
from laurel.launch.logs import DIED, read_folder, show
from laurel.tracking.timer import Timer
from laurel.types import Request, SamplingParams
from laurel.workers import group as group_module
from laurel.workers import waiting
from laurel.workers.clients import ActorClient, WeightsClient
from laurel.workers.group import WorkerGroup
from laurel.workers.host import Updates
from laurel.workers.rollout_client import rollout_clients
from laurel.workers.session import RaySession
from laurel.workers.waiting import WorkerError
from laurel.workers.worker import _OPTIONS

REPOSITORY = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
ATTACH = re.compile(r"attach a debugger to (\S+:\d+)")
OUTSIDE = 10_000  # no token of the small model

REWARD = """
import pathlib

def compute_score(data_source, solution_str, ground_truth, extra_info):
    right = solution_str == ground_truth
    once = pathlib.Path(__file__).with_suffix(".paused")
    if not once.exists():
        once.touch()
        breakpoint()
    return float(right)
"""


def shell(**more):
    """A shell of this user that knows nothing of the cluster."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "LAUREL_"))}
    return {**clean, "PYTHONPATH": str(REPOSITORY), **more}


def laurel(*words, timeout_s=60):
    done = subprocess.run(
        [sys.executable, "-m", "laurel", *words], env=shell(), capture_output=True, text=True, timeout=timeout_s
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def until(look, what, deadline_s=60.0):
    end = time.monotonic() + deadline_s
    while not (found := look()):
        assert time.monotonic() < end, f"no {what} within {deadline_s:.0f} s"
        time.sleep(0.2)
    return found


@pytest.fixture(scope="module")
def session():
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("RAY_ADDRESS", raising=False)
        patch.setenv("PYTHONPATH", f"{REPOSITORY}{os.pathsep}{REPOSITORY / 'tests'}")  # for PausedRank
        with RaySession({"address": "local", "num_cpus": 2}) as session:
            yield session


@pytest.fixture
def ranks(session, small_ppo, monkeypatch):
    """``with ranks() as (group, config, said)``: one rank, and what the driver said."""

    @contextmanager
    def start():
        monkeypatch.setattr(waiting, "REPORT_EVERY_S", 1.0)
        said = []
        words = [word for word in small_ppo.settings(Path("unused"), nodes=1) if not word.startswith("critic.")]
        config = load([*words, "algorithm.adv_estimator=grpo"]).config
        group = WorkerGroup.spawn(config, Updates(1, 1), alone=True, say=said.append)
        try:
            yield group, config, said
        finally:
            group.kill()

    return start


def log_probs(group, config, token=5):
    """One forward of the learner over one row of six tokens; ``token`` is one of them."""
    batch = TokenBatch(
        {
            "input_ids": torch.tensor([4, 5, 6, token, 7, 5]),
            "position_ids": torch.arange(6),
            "response_mask": torch.arange(6) >= 3,
        },
        {"index": torch.arange(1), "group": torch.arange(1), "weight": torch.ones(1)},
        torch.tensor([0, 6]),
    )
    return ActorClient(group, config, timer=Timer(), step=lambda: 1).log_probs(batch)


def sample(group, token):
    """One completion of the engine for a prompt with ``token`` in it."""
    weights = WeightsClient(group, timer=Timer())
    weights.publish(0)

    async def ask():
        (client,) = rollout_clients(group, say=group.say)
        return await client.generate(Request("r", (5, token), SamplingParams(max_tokens=3), seed=0))

    with weights.awake():
        return asyncio.run(ask())


class Beside:
    """A call that is under way in another thread."""

    def __init__(self, call, *arguments):
        self.result = self.error = None

        def run():
            try:
                self.result = call(*arguments)
            except BaseException as error:
                self.error = error

        self.thread = threading.Thread(target=run, daemon=True)
        self.thread.start()

    def end(self, deadline_s=40.0):
        self.thread.join(deadline_s)
        assert not self.thread.is_alive(), f"still under way after {deadline_s:.0f} s"
        return self.error if self.error is not None else self.result


def place_said(said):
    """Where the driver's own words send a debugger."""
    return until(lambda: next((found[1] for line in said if (found := ATTACH.search(line))), None), "place to attach")


def test_a_breakpoint_in_a_reward_function_of_a_run(small_ppo, tmp_path):
    file = tmp_path / "judge.py"
    file.write_text(REWARD)
    words = [*small_ppo.settings(tmp_path / "results", nodes=1, steps=1), "reward.num_workers=0"]
    log = tmp_path / "log"
    with log.open("wb") as out:
        run = subprocess.Popen(
            [sys.executable, "-m", "laurel", "train", *words, f"reward.custom_reward_function.path={file}"],
            env=shell(),
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    try:
        address = until(lambda: re.search(r"Started Ray \S+ at (\S+)", log.read_text()), "Ray")[1]
        until(file.with_suffix(".paused").exists, "call of the reward function")
        text = until(lambda: ATTACH.search(seen := laurel("stacks", "--address", address)) and seen, "pause")
        assert f"the driver (pid {run.pid}) is paused: attach" in text, text
        assert re.search(r"^== rank 0 on node \S+ \(\S+\), pid \d+, by py-spy$", text, re.M), text
        with Debugger(ATTACH.search(text)[1]) as debugger:
            _, frames = debugger.stopped()
            frame = next(frame for frame in frames if frame["name"] == "compute_score")
            assert (frame["source"]["path"], frame["line"]) in [(str(file), 9), (str(file), 10)]
            assert debugger.value(frame, "right") in ("True", "False")
        assert run.wait(60) == 0, log.read_text()
    finally:
        if run.poll() is None:
            run.kill()
            run.wait()
    assert (tmp_path / "results" / "global_step_1" / "run_state.json").exists()


def test_an_exception_in_a_learner_waits_for_a_debugger_and_is_the_cause_in_the_logs(ranks, session, monkeypatch):
    monkeypatch.setenv("RAY_DEBUG_POST_MORTEM", "1")  # of the driver's shell alone; Ray runs without it
    with ranks() as (group, config, said):
        (member,) = group.members
        call = Beside(log_probs, group, config, OUTSIDE)
        with Debugger(place_said(said)) as debugger:
            reason, frames = debugger.stopped()
            assert reason == "exception"
            assert any(line.startswith("Waiting ") and "rank 0 is paused" in line for line in said), said
            names = [(frame["name"], Path(frame["source"]["path"]).name) for frame in frames]
            assert ("log_probs", "worker.py") in names, names
            assert names[0] == ("embedding", "functional.py"), names
            assert debugger.value(frames[0], "int(input.max())") == str(OUTSIDE)
        error = call.end()
        assert isinstance(error, WorkerError)
        assert f"rank 0 on node {member.ip} (pid {member.pid}) failed in old log-probs" in str(error)
        assert "IndexError: index out of range in self" in str(error)
    text = laurel("logs", "--address", session.address, "--tail", "3")
    assert f"Cause: rank 0 (pid {member.pid}), in log_probs on node {member.ip} ({member.host})" in text, text
    assert f"\n  {member.log}\n\nTraceback (most recent call last):" in text
    assert "\nIndexError: index out of range in self" in text
    assert f"The last 3 lines of {member.log}:" in text
    assert f"node {member.ip} ({member.host}): {Path(member.log).parent}" in text


def test_an_exception_in_an_engine_waits_for_a_debugger(ranks, monkeypatch):
    monkeypatch.setenv("RAY_DEBUG_POST_MORTEM", "1")
    with ranks() as (group, _, said):
        call = Beside(sample, group, OUTSIDE)
        with Debugger(place_said(said)) as debugger:
            reason, frames = debugger.stopped()
            names = [frame["name"] for frame in frames]
            assert reason == "exception"
            assert "generate" in names, names
            assert any("rollout/native" in frame["source"]["path"] for frame in frames), frames
        error = call.end()
        assert isinstance(error, WorkerError), error
        assert "IndexError" in str(error)


def test_the_legacy_debugger_of_ray_stops_in_a_learner(ranks, session, monkeypatch):
    monkeypatch.setenv("RAY_DEBUG", "legacy")
    monkeypatch.setattr(group_module, "RemoteRank", ray.remote(**_OPTIONS)(PausedRank))
    with ranks() as (group, config, _):
        call = Beside(log_probs, group, config)
        debug = subprocess.Popen(
            [str(BIN / "ray"), "debug", "--address", session.address],
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            bufsize=1,
        )
        heard = []
        listener = Beside(lambda: [heard.append(char) for char in iter(lambda: debug.stdout.read(1), "")])

        def tell(words, answer):
            start = len(heard)
            debug.stdin.write(words + "\n")
            debug.stdin.flush()
            return until(lambda: answer in "".join(heard[start:]) and "".join(heard[start:]), answer, 30)

        try:
            until(lambda: "press enter to refresh" in "".join(heard), "list of breakpoints", 40)
            until(lambda: "debugged.py" in tell("", "press enter to refresh"), "breakpoint", 40)
            assert "debugged.py" in tell("0", "(Pdb)")
            assert "1" in tell("p rows", "(Pdb)")
            tell("c", "press enter to refresh")
        finally:
            debug.kill()
            debug.wait()
            listener.end()
        assert call.end().shape == (6,)


def test_a_rank_that_was_killed_is_the_cause_in_the_folder_of_a_session(ranks):
    with ranks() as (group, config, _):
        (member,) = group.members
        folder = Path(member.log).parent.parent
        before = [one for logs in read_folder(folder) for one in logs.findings if one.kind == DIED]
        assert f"rank 0 (pid {member.pid})" not in {one.who for one in before}
        os.kill(member.pid, signal.SIGKILL)
        error = Beside(log_probs, group, config).end()
        assert isinstance(error, WorkerError)

        def dead():
            logs = read_folder(folder)
            found = [one for node in logs for one in node.findings if one.who == f"rank 0 (pid {member.pid})"]
            return found and (logs, found)

        logs, found = until(dead, "sign of the death", 30)
        assert [one.kind for one in found] == [DIED]
        assert found[0].file == member.log
        assert "ended unexpectedly" in found[0].summary
        alone = [replace(node, findings=tuple(found)) for node in logs]
        assert f"Cause: rank 0 (pid {member.pid}) on folder {logs[0].folder}" in show(alone)
