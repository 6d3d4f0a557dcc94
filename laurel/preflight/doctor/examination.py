"""The rounds of questions to all nodes, and what is made of the answers."""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from laurel.config.tree import Config
from laurel.preflight.doctor import clock, gpus, network, paths, ports, space, trial, versions
from laurel.preflight.doctor.finding import Finding, Severity
from laurel.preflight.doctor.inspector import Facts, Inspector
from laurel.preflight.doctor.report import Report
from laurel.preflight.doctor.settings import parameters_of, paths_of
from laurel.workers.everywhere import Answer

_ROUND_S = 20.0
_START_S = 30.0  # of the first round, in which processes start
_MEET_S = 25.0  # in which torch is imported
_TRIAL_S = {"cpu": 14.0, "cuda": 20.0}  # somewhat longer than the ranks' own deadlines
_DEEDS = {
    "look": "look at itself",
    "clock": "read its clock",
    "knock": "connect to the others",
    "contents": "read the files that the settings name",
    "plant": "write to the checkpoint folder",
    "seek": "look into the checkpoint folder",
    "run_trial": "sum numbers with the others",
}
FOLDER = "trainer.default_local_dir"
CHECKPOINTS = "checkpoints"


class Asked(Protocol):
    """``Posts`` of a cluster, or this process alone."""

    def ask(self, method: str, arguments: Mapping[str, Sequence[Any]], *, deadline_s: float) -> dict[str, Answer]: ...


class Here:
    """This machine alone, asked without Ray."""

    def __init__(self) -> None:
        self._inspector = Inspector({})

    def ask(self, method: str, arguments: Mapping[str, Sequence[Any]], *, deadline_s: float) -> dict[str, Answer]:
        answers = {}
        for node_id, words in arguments.items():
            answers[node_id] = Answer("", "", getattr(self._inspector, method)(*words), node_id=node_id)
        return answers


@dataclass(frozen=True)
class Node:
    """A node as Ray knows it. ``name`` is what messages call it."""

    id: str
    name: str
    address: str
    cpus: float
    gpus: float


@dataclass
class Examination:
    """``nodes``: the driver's own first. ``config`` None: the nodes alone are looked at."""

    asked: Asked
    nodes: Sequence[Node]
    config: Config | None
    report: Report
    ends: float
    """Of all rounds together, on the clock of time.monotonic."""
    facts: dict[str, Facts] = field(default_factory=dict)

    def run(self, *, measure: bool) -> None:
        """Fills the report. ``measure``: the all-reduce too, which takes the longest."""
        if not self._look():
            return
        self._judge_nodes()
        self._clocks()
        if self.machines > 1:
            self._ports()
        if self.config is not None:
            self._paths(self.config)
            self._checkpoints(self.config)
        if measure:
            self._bandwidth()

    @property
    def machines(self) -> int:
        return len({node.address for node in self._looked})

    @property
    def _looked(self) -> list[Node]:
        """Nodes that answered."""
        return [node for node in self.nodes if node.id in self.facts]

    @property
    def _by_name(self) -> dict[str, Facts]:
        return {node.name: self.facts[node.id] for node in self._looked}

    def _ask(self, method: str, arguments: Mapping[str, Sequence[Any]], most_s: float = _ROUND_S) -> dict[str, Any]:
        """Answers by node id; a node that has none becomes a finding and is asked no more."""
        answers = self.asked.ask(method, arguments, deadline_s=min(most_s, self.ends - time.monotonic()))
        for node in self.nodes:
            answer = answers.get(node.id)
            if answer is not None and answer.error:
                what = f"asked to {_DEEDS.get(method, method)}, it {answer.error}"
                cure = "look at its logs (`laurel logs`), and whether its Laurel, Python and Ray are this machine's"
                self.report.findings.append(Finding("cluster", "error", node.name, what, cure))
                self.facts.pop(node.id, None)
        return {node_id: answer.result for node_id, answer in answers.items() if not answer.error}

    def _each(self, *words: Any) -> dict[str, Sequence[Any]]:
        return {node.id: words for node in self._looked}

    def _look(self) -> bool:
        addresses = [node.address for node in self.nodes]
        folders = {} if self.config is None else {CHECKPOINTS: str(self.config.trainer.default_local_dir)}
        words = {node.id: (node.id, addresses, node.gpus, folders) for node in self.nodes}
        self.facts = self._ask("look", words, _START_S)
        self.report.nodes = self._by_name
        return bool(self.facts)

    def _judge_nodes(self) -> None:
        looked, found = self._by_name, self.report.findings
        found += versions.judge(versions.look(), {name: facts.versions for name, facts in looked.items()})
        addresses = {node.name: node.address for node in self._looked}
        networks = {name: facts.network for name, facts in looked.items()}
        found += network.judge(addresses, networks, machines=self.machines)
        found += self._cards(looked)
        parameters = [] if self.config is None else parameters_of(self.config)
        rooms = {name: facts.space for name, facts in looked.items()}
        several = [name for name, facts in looked.items() if facts.gpus.offered > 1]
        found += space.judge(rooms, parameters=max(parameters, default=None), nccl=several)
        if self.config is not None and not self.config.trainer.val_only:
            first = next(iter(rooms.values())).disks[CHECKPOINTS]
            found += space.judge_checkpoints(str(self.config.trainer.default_local_dir), first, parameters=parameters)
        found += self._cores()

    def _cores(self) -> list[Finding]:
        """A node that offers no CPU takes no rank; a head may be meant so."""
        idle = [node.name for node in self._looked if node.cpus < 1]
        few = len(self._looked) - len(idle) < (1 if self.config is None else self.config.trainer.nnodes)
        severity: Severity = "error" if few else "note"
        cure = "start Ray there with --num-cpus=1 or more, if it is to run ranks"
        return [Finding("CPUs", severity, name, "offers no CPU to Ray, so it gets no rank", cure) for name in idle]

    def _cards(self, looked: Mapping[str, Facts]) -> list[Finding]:
        """GPUs, of those nodes that a run would take."""
        offered = [facts.gpus.offered for facts in looked.values()]
        count = 1 if self.config is None else self.config.trainer.nnodes
        if self.config is None:
            wanted = int(min(offered)) or int(bool(max(offered)))
        elif self.config.trainer.device == "cpu":
            wanted = 0
        else:
            wanted = self.config.trainer.n_gpus_per_node or 1
        enough = {name: facts for name, facts in looked.items() if facts.gpus.offered >= wanted}
        judged = enough if len(enough) >= count else looked
        torch = {name: facts.versions["torch"] for name, facts in judged.items()}
        return gpus.judge({name: facts.gpus for name, facts in judged.items()}, wanted=wanted, torch=torch)

    def _clocks(self) -> None:
        offsets = {}
        for node in self._looked[1:]:
            theirs: list[float] = []

            def read(node_id: str = node.id, theirs: list[float] = theirs) -> float:
                theirs += self._ask("clock", {node_id: ()}).values()
                return theirs[0] if theirs else math.nan

            offsets[node.name] = clock.compare(read)
        self.report.findings += clock.judge(offsets)

    def _ports(self) -> None:
        names = {node.id: node.name for node in self._looked}
        doors = self._ask("listen", {node.id: (node.address,) for node in self._looked})
        others = {
            asking: ({names[node_id]: door for node_id, door in doors.items() if node_id != asking},)
            for asking in doors
        }
        heard = self._ask("knock", others)
        span = next(iter(self.facts.values())).port_range if self.facts else ""
        problems = {names[node_id]: answers for node_id, answers in heard.items()}
        self.report.findings += ports.judge(problems, span)

    def _paths(self, config: Config) -> None:
        named = paths_of(config)
        contents = self._ask("contents", self._each([one.path for one in named]))
        own = contents.get(self.nodes[0].id)
        if own is None:
            return
        for one in named:
            by_name = {node.name: contents[node.id][one.path] for node in self._looked if node.id in contents}
            self.report.findings += paths.judge(one, by_name)

    def _checkpoints(self, config: Config) -> None:
        folder, token = str(config.trainer.default_local_dir), secrets.token_hex(8)
        if config.trainer.val_only or self.nodes[0].id not in self.facts:
            return
        writer, *others = self._looked
        planted = self._ask("plant", {writer.id: (folder, token)}).get(writer.id)
        if planted is None:
            return
        try:
            words = {node.id: (folder, token, str(number)) for number, node in enumerate(others)}
            found = self._ask("seek", words) if words and not planted.problem else {}
            seen = {node.name: found[node.id] for node in others if node.id in found}
        finally:
            self._ask("uproot", {writer.id: (folder, token, planted.made)})
        together = config.trainer.nnodes > 1
        self.report.findings += paths.judge_shared(FOLDER, folder, (writer.name, planted), seen, together=together)

    def _bandwidth(self) -> None:
        plan, reason = self._plan()
        if reason:
            self.report.findings.append(Finding("bandwidth", "note", "", reason))
        if plan.world < 2:
            return
        nodes = [node for node in self._looked if node.name in plan.ranks]
        host = nodes[0].address
        self._ask(
            "start_trial",
            {
                node.id: (plan.ranks[node.name], plan.world, host, plan.device, self.facts[node.id].visible)
                for node in nodes
            },
        )
        address = self._ask("meeting", {nodes[0].id: (_MEET_S,)}, _MEET_S + 1).get(nodes[0].id, "")
        left = min(_TRIAL_S[plan.device], self.ends - time.monotonic() - 2)
        answers = self._ask("run_trial", {node.id: (address, left) for node in nodes}, left + 2)
        self._ask("close", {node.id: () for node in nodes if node.id in self.facts})
        outcomes = {node.name: answers.get(node.id, []) for node in nodes}
        if fact := trial.describe(plan, outcomes):
            self.report.facts.append(fact)
        variable = network.NCCL if plan.device == "cuda" else network.GLOO
        networks = {node: self.facts[node.id].network for node in nodes if node.id in self.facts}
        taken = {
            node.name: its.chosen.get(variable) or network.taken(node.address, its, host)
            for node, its in networks.items()
        }
        self.report.findings += trial.judge(plan, outcomes, taken)

    def _plan(self) -> tuple[trial.Plan, str]:
        """Every GPU of each node, or a process a node where there are none; and why it is less than one might want."""
        looked = self._by_name
        built = {name for name, facts in looked.items() if "+cpu" not in facts.versions["torch"]}
        cards = {name: int(min(one.gpus.offered, len(one.gpus.shown or ()))) for name, one in looked.items()}
        cards = {name: count for name, count in cards.items() if count and name in built}
        if self.config is not None and self.config.trainer.device == "cpu":
            cards = {}
        busy = [name for name in cards if any(gpu.busy for gpu in looked[name].gpus.shown or ())]
        reason = f"GPUs of {', '.join(busy)} are in use, so their all-reduce was not measured" if busy else ""
        device: trial.Device = "cuda" if cards and not busy else "cpu"
        counts = cards if device == "cuda" else dict.fromkeys(looked, 1)
        ranks, first = {}, 0
        for name, count in counts.items():
            ranks[name] = tuple(range(first, first + count))
            first += count
        return trial.Plan(ranks, device), reason
