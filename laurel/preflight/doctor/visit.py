"""The whole visit: the settings on this machine, and every node of the cluster, or this machine alone."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import ray

from laurel.config.load import Reading
from laurel.config.machine import visible_gpus
from laurel.config.network import route_source
from laurel.config.tree import Config
from laurel.preflight.check import check_all
from laurel.preflight.doctor import ports
from laurel.preflight.doctor.examination import Asked, Examination, Here, Node
from laurel.preflight.doctor.finding import HERE, Finding, NodesError, errors
from laurel.preflight.doctor.inspector import Inspector
from laurel.preflight.doctor.report import Report, listed
from laurel.preflight.doctor.reward import custom_name, sampled
from laurel.preflight.doctor.reward import examine as examine_reward
from laurel.preflight.doctor.settings import Tried, of_problems, try_all
from laurel.rewards.reward_fn import RewardFn
from laurel.types import LaurelError, Problem, Prompt
from laurel.workers.environment import passed_environment
from laurel.workers.everywhere import Posts, chosen_nodes, join, running_cluster
from laurel.workers.placement import Node as PlacedNode
from laurel.workers.session import usable_cores

TOTAL_S = 55.0
_BEFORE_RUN_S, _REWARD_S = 45.0, 20.0
_SLOW_SETTINGS = Finding(
    "settings",
    "error",
    "",
    f"tokenizer, data and reward function were not tried to their end within {TOTAL_S:.0f} s",
    "look whether a disk or reward.custom_reward_function hangs",
)
_SLOW_REWARD = Finding(
    "reward",
    "warning",
    "",
    f"the reward function did not score a few answers within {_REWARD_S:.0f} s",
    "every step waits for it: make it faster, or look whether it hangs",
)


def visit(address: str | None, reading: Reading | None) -> Report:
    """What `laurel doctor` does: everything, within a minute. ``reading``: the settings of a run, None without any.

    Raises LaurelError if ``address`` cannot be joined, or if it is not clear which cluster is meant.
    """
    start = time.monotonic()
    cluster = running_cluster(address)
    if cluster is None and address:
        raise LaurelError(f"--address {address}: no such cluster; name host:port of a running Ray")
    report, config = Report(cluster or ""), _usable(reading)
    problems: list[Problem] = []
    if reading is not None:
        problems += reading.problems
        problems += [one for one in check_all(reading.loaded.config) if one.field not in reading.suspects]
        report.findings += of_problems(problems)
    wrong = {problem.field for problem in problems}
    trial = _Aside(lambda: Tried() if config is None else try_all(config, wrong))
    if cluster is None:
        _look_here(report, config, start + TOTAL_S)
    else:
        _look_around(report, cluster, config, start + TOTAL_S)
    tried = trial.result(start + TOTAL_S - time.monotonic(), _SLOW_SETTINGS)
    report.findings += tried.findings
    report.facts = tried.facts + report.facts
    report.seconds = time.monotonic() - start
    return report


def before_run(
    config: Config,
    nodes: Sequence[PlacedNode],
    prompts: Iterable[Prompt],
    reward: RewardFn,
    *,
    say: Callable[[str], object],
) -> None:
    """The checks that need no long time, on the nodes that a run was given, before a model is loaded.

    ``say`` gets warnings. Raises NodesError with all errors in one report.
    """
    start = time.monotonic()
    # Who scores in this process may want a debugger to stop there, in the run itself
    tries = [] if config.reward.num_workers == 0 else sampled(prompts, 1)
    scored = _Aside(lambda: Tried(examine_reward(tries, reward, custom=custom_name(config)) if tries else []))
    own = ray.get_runtime_context().get_node_id()
    report = Report(ray.get_runtime_context().gcs_address)
    rows = [row for row in ray.nodes() if row["Alive"] and row["NodeID"] in {node.id for node in nodes} | {own}]
    asked = named(rows, own)
    ends = start + _BEFORE_RUN_S
    if len(rows) == 1:
        Examination(Here(), asked, config, report, ends).run(measure=False)
    else:
        with Posts(Inspector, rows, passed_environment()) as posts:
            Examination(posts, asked, config, report, ends).run(measure=False)
    report.findings += scored.result(_REWARD_S, _SLOW_REWARD).findings
    report.seconds = time.monotonic() - start
    if errors(report.findings):
        told = "\n".join(listed(report.findings, ("error", "warning")))
        raise NodesError(f"this run would fail ({report.summary()}):\n{told}")
    for line in listed(report.findings, ("warning",)):
        if line:
            say(line)


def named(rows: Sequence[dict[str, Any]], own: str) -> list[Node]:
    """Rows of ``ray.nodes()`` as nodes with names of their own, the node ``own`` first, then by address."""
    labels = {row["NodeID"]: f"node {row['NodeManagerAddress']} ({row['NodeManagerHostname']})" for row in rows}
    shared = Counter(labels.values())
    nodes = [
        Node(
            row["NodeID"],
            label if shared[label] == 1 else f"{label[:-1]}, {row['NodeID'][:6]})",
            row["NodeManagerAddress"],
            row["Resources"].get("CPU", 0.0),
            row["Resources"].get("GPU", 0.0),
        )
        for row, label in zip(rows, labels.values(), strict=True)
    ]
    return sorted(nodes, key=lambda node: (node.id != own, node.address, node.id))


def _usable(reading: Reading | None) -> Config | None:
    """The settings, if they are complete enough to be tried."""
    if reading is None or reading.loaded.config.actor_rollout_ref.model.path is None:
        return None
    return reading.loaded.config


def _look_here(report: Report, config: Config | None, ends: float) -> None:
    address = route_source("192.0.2.1") or "127.0.0.1"
    node = Node("", f"{HERE} ({socket.gethostname()})", address, usable_cores(), visible_gpus())
    report.findings += ports.judge_taken(ports.taken_here(), node.name)
    Examination(Here(), [node], config, report, ends).run(measure=True)


def _look_around(report: Report, cluster: str, config: Config | None, ends: float) -> None:
    with join(cluster):
        if os.environ.get("RAY_AUTH_MODE", "disabled") != "token":
            what = "asks for no token: whoever reaches its ports can run code there"
            cure = "start its nodes with RAY_AUTH_MODE=token (docs/multinode.md)"
            report.findings.append(Finding("cluster", "warning", "", f"the Ray at {cluster} {what}", cure))
        rows = chosen_nodes(ray.nodes(), ())
        alive = [row for row in rows if row["Alive"]]
        for row in rows:
            if not row["Alive"]:
                name = f"node {row['NodeManagerAddress']} ({row['NodeManagerHostname']})"
                cure = "start Ray there again if it is to be part of runs; `laurel logs` may know why it ended"
                report.findings.append(Finding("cluster", "note", name, "has left the cluster", cure))
        if config is not None and len(alive) < config.trainer.nnodes:
            what = f"trainer.nnodes={config.trainer.nnodes}, but the cluster has {len(alive)}"
            cure = f"run `ray start --address={cluster}` on the others, or lower trainer.nnodes"
            report.findings.append(Finding("cluster", "error", "", what, cure))
        nodes = named(alive, ray.get_runtime_context().get_node_id())
        with Posts(Inspector, alive, passed_environment()) as posts:
            asked: Asked = posts
            Examination(asked, nodes, config, report, ends).run(measure=True)


class _Aside:
    """Something done in a thread of its own, which may hang: a user's reward function, a template, a disk."""

    def __init__(self, act: Callable[[], Tried]):
        self._done: Tried | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(act,), daemon=True, name="settings")
        self._thread.start()

    def _run(self, act: Callable[[], Tried]) -> None:
        try:
            self._done = act()
        except BaseException as error:  # raised again where the result is wanted
            self._error = error

    def result(self, within_s: float, late: Finding) -> Tried:
        """``late`` is found if it takes longer."""
        self._thread.join(max(0.0, within_s))
        if self._error is not None:
            raise self._error
        return Tried([late]) if self._done is None else self._done
