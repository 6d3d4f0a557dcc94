"""The process that vLLM runs in: killed, it is started again; and it ends with its parent."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from laurel.rollout.engine import EngineError
from laurel.weights.ways import Buckets
from vllm_engine.asked import answers, prompt, request

ROOT = Path(__file__).resolve().parents[2]


def publish(engine, module, version):
    asyncio.run(Buckets(module, dtype=torch.float32, device="cpu").publish(engine, version))


def long_requests():
    return [request(f"r{i}", prompt(5, seed=i), seed=i, max_tokens=80, ignore_eos=True) for i in range(12)]


@pytest.fixture
def engine(made, module):
    one = made("vllm", module)
    publish(one, module, 3)
    yield one
    one.close()


def test_a_killed_process_is_started_again_and_owes_nothing(engine, vllm, caplog):
    """Killed in the midst of its requests, and once more while it sleeps."""
    wanted = [one.token_ids for one in answers(vllm, long_requests())]
    futures = engine.submit_all(long_requests())
    first = engine._child.pid
    os.kill(first, signal.SIGKILL)
    found = [future.result(120) for future in futures]
    assert [one.token_ids for one in found] == wanted
    assert {one.policy_version for one in found} == {3}
    assert engine._child.pid != first
    assert f"process {first} ended by signal 9" in caplog.text
    assert "given version 3" in caplog.text


def test_beyond_its_restarts_everybody_who_waits_is_told(engine, module):
    engine._restarts_left = 0
    futures = engine.submit_all(long_requests())
    os.kill(engine._child.pid, signal.SIGKILL)
    for future in futures:
        with pytest.raises(EngineError, match=r"not started again \(that was tried as often.*ended by signal 9"):
            future.result(60)
    with pytest.raises(EngineError, match="the engine has no weights"):
        engine.submit(request("late", prompt(3)))
    with pytest.raises(EngineError, match="vLLM ended too often: process"):
        publish(engine, module, 4)


def test_one_that_died_between_two_rollouts_is_there_for_the_next(engine, module):
    asyncio.run(engine.sleep())
    os.kill(engine._child.pid, signal.SIGKILL)
    while engine._child.alive:
        time.sleep(0.01)
    asyncio.run(engine.wake("weights"))
    publish(engine, module, 4)
    asyncio.run(engine.wake("cache"))
    assert answers(engine, [request("a", prompt(3), max_tokens=1)])[0].policy_version == 4


def test_what_vllm_refuses_at_the_start_is_said_with_its_last_words(made, module, monkeypatch):
    with pytest.raises(EngineError, match=r"(?s)vLLM did not start: .*NO_SUCH.*Its last words:"):
        made("vllm", module, "actor_rollout_ref.rollout.engine_kwargs.vllm.attention_backend=no_such")


def test_a_process_ends_with_its_parent(tmp_path):
    """Killed, so that it cannot say goodbye; the process is idle, which is when nothing else would end it."""
    code = (
        "import os, signal, torch\n"
        "from laurel.rollout.vllm.child import Child\n"
        "child = Child(torch.device('cpu'), None)\n"
        "print(child.pid, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=60)
    pid = int(ran.stdout)
    deadline = time.monotonic() + 30
    while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not Path(f"/proc/{pid}").exists()


def test_closing_ends_the_process_and_fails_what_is_pending(engine):
    futures = engine.submit_all(long_requests())
    child = engine._child
    engine.close()
    assert not child.alive
    for future in futures:
        with pytest.raises(EngineError, match="closed while requests were pending"):
            future.result(10)
    with pytest.raises(EngineError, match="the engine was closed"):
        engine.submit(request("late", prompt(3)))
