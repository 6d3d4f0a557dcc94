"""What a reward function can do to the process it runs in is one sample's loss."""

from __future__ import annotations

import asyncio
import os
import re
import time
from pathlib import Path

import pytest

from laurel.config.tree import Config
from laurel.rewards.pool import InThisProcess, ScoringPool, build_scorer
from laurel.rewards.reward_fn import RewardError, load_reward_fn
from laurel.types import Prompt, Score, Unscored

FUNCTION = """
import ctypes, os, signal, subprocess, sys, time

def compute_score(data_source, solution_str, ground_truth, extra_info):
    if solution_str == "hang":
        for name in set(range(1, 32)) - {9, 19}:
            signal.signal(name, signal.SIG_IGN)
        child = subprocess.Popen(["sleep", "300"])
        open(ground_truth, "w").write(str(child.pid))
        time.sleep(300)
    if solution_str == "crash":
        ctypes.string_at(1)
    if solution_str == "exit":
        os._exit(7)
    if solution_str == "quit":
        sys.exit(3)
    if solution_str == "raise":
        raise KeyError("answer")
    if solution_str == "pause":
        breakpoint()
    if solution_str == "grow":
        x = bytearray(b"x") * (600 << 20)
        time.sleep(300)
    if solution_str == "recurse":
        return compute_score(data_source, solution_str, ground_truth, extra_info)
    time.sleep(0.3 if solution_str == "slow" else 0)
    return {"score": len(solution_str), "pid": os.getpid()}
"""


@pytest.fixture
def pool(tmp_path):
    """``pool(processes, timeout=...)``: made, and closed afterwards."""
    file = tmp_path / "mine.py"
    file.write_text(FUNCTION)
    made = []

    def make(processes=1, **reward):
        settings = {"custom_reward_function": {"path": str(file)}, "timeout": 60, "memory_limit_mb": 400} | reward
        made.append(ScoringPool(Config.model_validate({"reward": settings}), processes=processes))
        return made[-1]

    yield make
    for one in made:
        one.close()


def prompt(truth="1"):
    return Prompt(17, (1,), (), "me/mine", truth)


def score(pool, *texts, truth="1"):
    async def every():
        return await asyncio.gather(*(pool.score(t, prompt(truth), i, length=1) for i, t in enumerate(texts)))

    return [scored.result for scored in asyncio.run(every())]


def test_scores_come_from_other_processes_and_several_event_loops(pool):
    several = pool(2)
    results = [*score(several, "slow", "slow", "slow", "slow"), *score(several, "abc")]
    assert [result.value for result in results] == [4, 4, 4, 4, 3]
    pids = {result.extras["pid"] for result in results}
    assert os.getpid() not in pids
    assert len(pids) == 2


@pytest.mark.parametrize(
    ("text", "kind", "reason"),
    [
        ("crash", "crash", "did not survive it: the process was ended by SIGSEGV"),
        ("exit", "crash", "did not survive it: the process ended with exit code 7"),
        ("quit", "error", r"the reward function called sys.exit\(3\)"),
        ("raise", "error", "raised KeyError: 'answer'"),
        ("recurse", "error", "raised RecursionError"),
        ("pause", "error", "no debugger reaches a scoring process; set reward.num_workers=0 to stop there"),
        ("grow", "memory", "took more than reward.memory_limit_mb=400 MiB"),
    ],
)
def test_one_sample_is_lost_and_the_next_is_scored(pool, text, kind, reason):
    lost, kept = score(pool(), text, "abc")
    assert isinstance(lost, Unscored)
    assert lost.kind == kind
    assert re.search(reason, lost.reason), lost.reason
    assert "row 17" in lost.reason
    assert kept.value == 3


def test_what_hangs_is_killed_at_the_time_limit_with_its_children(pool, tmp_path):
    began = time.monotonic()
    lost, kept = score(pool(timeout=1.5), "hang", "abc", truth=str(tmp_path / "pid"))
    assert lost == Unscored(
        "time", "the reward function on row 17 (data_source 'me/mine', sample 0) took more than reward.timeout=1.5 s"
    )
    assert kept.value == 3
    assert time.monotonic() - began < 30
    child = int((tmp_path / "pid").read_text())
    for _ in range(100):
        stat = Path(f"/proc/{child}/stat")
        state = stat.read_text().split()[2] if stat.exists() else "gone"
        if state in ("gone", "Z"):
            break
        time.sleep(0.05)
    assert state in ("gone", "Z")


def test_one_that_hangs_does_not_hold_up_the_others(pool, tmp_path):
    several = pool(2, timeout=5)
    score(several, "slow", "slow")  # both are up

    async def race():
        hanging = asyncio.ensure_future(several.score("hang", prompt(str(tmp_path / "pid")), 0, length=1))
        others = await asyncio.gather(*(several.score("abc", prompt(), i, length=1) for i in range(1, 5)))
        return others, hanging.done(), await hanging

    others, hung_ended, hung = asyncio.run(race())
    assert [scored.result.value for scored in others] == [3] * 4
    assert not hung_ended
    assert hung.result.kind == "time"
    assert hung.seconds >= 5


def test_closing_kills_a_score_that_is_under_way(pool, tmp_path):
    one = pool()

    async def closed():
        hanging = asyncio.ensure_future(one.score("hang", prompt(str(tmp_path / "pid")), 0, length=1))
        while not (tmp_path / "pid").exists():
            await asyncio.sleep(0.05)
        await asyncio.to_thread(one.close)
        return await hanging

    began = time.monotonic()
    assert asyncio.run(closed()).result.kind == "crash"
    assert time.monotonic() - began < 30


def test_a_file_that_cannot_be_loaded_is_an_error_and_no_outcome(pool, tmp_path):
    one = pool()
    (tmp_path / "mine.py").write_text("import absent_package_of_mine")
    with pytest.raises(RewardError, match="No module named 'absent_package_of_mine'"):
        score(one, "abc")


def test_without_processes_a_failure_is_an_outcome_too(tmp_path):
    (tmp_path / "mine.py").write_text(FUNCTION)
    config = Config.model_validate(
        {"reward": {"custom_reward_function": {"path": str(tmp_path / "mine.py")}, "num_workers": 0}}
    )
    scorer = build_scorer(config, load_reward_fn(config), cores=2)
    assert isinstance(scorer, InThisProcess)
    kept, lost = score(scorer, "abc", "raise")
    assert kept == Score(3.0, {"pid": float(os.getpid())})
    assert lost.kind == "error"
