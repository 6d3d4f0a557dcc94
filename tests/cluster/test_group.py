"""Ranks on two simulated nodes: same results as on one, and failures that say who failed and why."""

import asyncio
import os
import signal
import threading
import time

import pytest
import torch

from laurel.tracking.timer import Timer
from laurel.types import Request, SamplingParams
from laurel.workers.clients import ActorClient, CriticClient, RefClient, WeightsClient
from laurel.workers.group import WorkerGroup
from laurel.workers.host import Updates
from laurel.workers.placement import PlacementError
from laurel.workers.rollout_client import rollout_clients
from laurel.workers.waiting import WorkerError


def spawn(config, session):
    return WorkerGroup.spawn(config, Updates(10, 10), alone=session.started)


def sample(group):
    """Two completions on each rank's engine, asked for at once."""

    async def ask():
        return await asyncio.gather(
            *[
                engine.generate(Request(f"{number}", (1, 5, 6 + number), SamplingParams(max_tokens=5), seed=number))
                for number, engine in enumerate(rollout_clients(group) * 2)
            ]
        )

    return asyncio.run(ask())


def one_step(group, config, batch):
    """Everything a PPO step asks of the ranks; returns every number that came back."""
    timer = Timer()
    actor = ActorClient(group, config, timer=timer, step=lambda: 1)
    critic = CriticClient(group, config, timer=timer, step=lambda: 1)
    weights = WeightsClient(group, timer=timer)
    weights.publish(0)
    with weights.awake():
        before = sample(group)
    old = actor.log_probs(batch)
    ref = RefClient(group, config, timer=timer).log_probs(batch)
    values = critic.values(batch)
    full = batch.with_(old_log_probs=old, ref_log_probs=ref, values=values)
    metrics = critic.update(full) | actor.update(full)
    weights.publish(1)
    with weights.awake():
        after = sample(group)
    results = {
        "old": old,
        "ref": ref,
        "values": values,
        "metrics": metrics,
        "samples": [(c.token_ids, c.log_probs) for c in before + after],
        "new": actor.log_probs(batch),
        "new values": critic.values(batch),
    }
    assert [c.policy_version for c in before + after] == [0] * len(before) + [1] * len(after)
    assert {"timing_s/publish", "timing_s/old_log_prob", "timing_s/update_actor"} <= timer.take().keys()
    return results


def equal(one, other):
    return torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other


def test_two_nodes_equal_one_bit_for_bit_and_failures_are_named(session, config, batch):
    two = config(nnodes=2, n_gpus_per_node=1)
    with spawn(two, session) as group:
        assert len({member.node_id for member in group.members}) == 2
        assert len({member.pid for member in group.members}) == 2
        assert [member.threads for member in group.members] == [max(1, len(os.sched_getaffinity(0)) // 2)] * 2
        apart = one_step(group, two, batch)
        assert torch.equal(apart["old"], apart["ref"]), "both are the model as loaded"
        assert not torch.equal(apart["new"], apart["old"]), "the update moved the weights"
        assert not torch.equal(apart["new values"], apart["values"])
        assert apart["metrics"]["actor/grad_norm"] > 0

        # Code that raises: rank, node and traceback arrive, and the ranks end
        with pytest.raises(WorkerError, match=r"^rank [01] on node .* failed in the actor's update:") as raised:
            ActorClient(group, two, timer=Timer(), step=lambda: 1).update(batch)
        assert "ValueError: 2 updates on one batch need its column old_log_probs" in str(raised.value)
        assert "learner.py" in str(raised.value)
        assert group.handles == ()

    one = config(nnodes=1, n_gpus_per_node=2)
    with spawn(one, session) as group:
        assert len({member.node_id for member in group.members}) == 1
        together = one_step(group, one, batch)
        assert [name for name in apart if not equal(apart[name], together[name])] == []

        # A rank that dies: said within seconds, by name, and not its partner whose collective broke
        victim = group.members[1]
        os.kill(victim.pid, signal.SIGSTOP)  # its partner now waits for it in a collective
        threading.Timer(2.0, os.kill, (victim.pid, signal.SIGKILL)).start()
        started = time.monotonic()
        with pytest.raises(WorkerError) as death:
            ActorClient(group, one, timer=Timer(), step=lambda: 1).log_probs(batch)
        assert 2 <= time.monotonic() - started < 15
        assert str(death.value).startswith(f"rank 1 on node {victim.ip} (pid {victim.pid}) died in old log-probs: ")
        assert "1 other rank failed with it" in str(death.value)
        assert group.handles == ()


def test_a_third_node_is_waited_for_until_the_deadline_and_then_named_missing(session, config):
    said = []
    started = time.monotonic()
    with pytest.raises(PlacementError) as caught:
        WorkerGroup.spawn(config(nnodes=3, placement_timeout=7), Updates(1, 1), alone=session.started, say=said.append)
    assert 7 <= time.monotonic() - started < 12
    message = str(caught.value)
    assert "3 nodes with a free CPU each wanted; have node" in message
    assert "1 of 3 missing; 1 more must join: on each run `ray start --address=" in message
    assert said[0].startswith("Waiting 5 s of 7 s for nodes: 3 nodes with a free CPU each wanted; have node")


def test_gpus_that_no_node_has_are_named(session, config):
    with pytest.raises(PlacementError, match=r"1 node with 4 GPUs wanted; have node .* with 0, .* fewer GPUs"):
        WorkerGroup.spawn(
            config(nnodes=1, n_gpus_per_node=4, placement_timeout=1).model_copy(
                update={
                    "trainer": config(n_gpus_per_node=4, placement_timeout=1).trainer.model_copy(
                        update={"device": "cuda"}
                    )
                }
            ),
            Updates(1, 1),
            alone=session.started,
        )


def test_the_session_found_the_cluster_and_speaks_its_language(cluster, session):
    assert session.address == cluster.address
    assert not session.started
    assert os.environ["RAY_AUTH_MODE"] == "token"
