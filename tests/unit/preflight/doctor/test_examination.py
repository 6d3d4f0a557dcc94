"""The rounds on nodes that are not there: what is asked of whom, and what becomes of the answers."""

import json
import time

import pytest

from laurel.config.load import load
from laurel.models.tiny import write_tiny_model
from laurel.preflight.doctor.examination import Examination, Here, Node
from laurel.preflight.doctor.gpus import Gpus
from laurel.preflight.doctor.inspector import Facts, Inspector
from laurel.preflight.doctor.network import Network
from laurel.preflight.doctor.paths import MISSING, Content, Planted
from laurel.preflight.doctor.report import Report
from laurel.preflight.doctor.space import Room, Space
from laurel.preflight.doctor.trial import Outcome
from laurel.preflight.doctor.versions import look as own_versions
from laurel.preflight.doctor.visit import named
from laurel.workers.everywhere import Answer

GIB = 2**30
NODES = [Node("1", "a", "10.0.0.1", 4, 0), Node("2", "b", "10.0.0.2", 4, 0)]


def facts(address: str) -> Facts:
    routes = dict.fromkeys(("10.0.0.1", "10.0.0.2"), "eth0")
    network = Network((("lo", "127.0.0.1"), ("eth0", address)), (address,), routes, {})
    disks = {"checkpoints": Room(99 * GIB, 99 * GIB)}
    space = Space(Room(99 * GIB, 99 * GIB), Room(9 * GIB, 9 * GIB), "/dev/shm", GIB, disks)
    return Facts(address, own_versions(), 4, network, Gpus(None, 0), space, None, "1024-2048")


class Nodes:
    """Answers by method and node; those that are not given are of a healthy pair."""

    def __init__(self, **answers):
        self.answers, self.asked = answers, []

    def ask(self, method, arguments, *, deadline_s):
        self.asked.append((method, sorted(arguments)))
        return {node: self._answer(method, node, words) for node, words in arguments.items()}

    def _answer(self, method, node, words):
        result = self.answers.get(method, {}).get(node, getattr(self, method)(node, *words))
        if isinstance(result, Exception):
            return Answer("", "", error=str(result), node_id=node)
        return Answer("", "", result, node_id=node)

    def look(self, node, *words):
        return facts({"1": "10.0.0.1", "2": "10.0.0.2"}[node])

    def clock(self, node):
        return time.time()

    def listen(self, node, address):
        return address, 1, "word"

    def knock(self, node, doors):
        return dict.fromkeys(doors, "")

    def contents(self, node, names):
        return dict.fromkeys(names, Content(1, "same"))

    def plant(self, node, folder, token):
        return Planted()

    def seek(self, node, folder, token, name):
        return ""

    def uproot(self, node, folder, token, made):
        return None

    def start_trial(self, node, *words):
        return None

    def meeting(self, node, within_s):
        return "10.0.0.1:1"

    def run_trial(self, node, address, within_s):
        return [Outcome(8 << 20, 0.01, "eth0")]

    def close(self, node):
        return None


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    model = write_tiny_model(tmp_path_factory.mktemp("tiny") / "model", hidden=32, layers=1)
    words = ["data.train_files=/d.parquet", f"actor_rollout_ref.model.path={model}", "trainer.device=cpu"]
    return load([*words, "trainer.nnodes=2", "trainer.default_local_dir=/c"]).config


def examined(config=None, nodes=NODES, *, measure=True, **answers):
    asked, report = Nodes(**answers), Report()
    Examination(asked, nodes, config, report, time.monotonic() + 60).run(measure=measure)
    return asked, report


def found(report):
    return [(one.topic, one.severity, one.where) for one in report.findings]


def test_a_healthy_pair(config):
    asked, report = examined(config)
    assert found(report) == []
    assert list(report.nodes) == ["a", "b"]
    assert report.facts == ["all-reduce of 8 MiB over 2 nodes (2 ranks, gloo on eth0): 10 ms, 0.8 GB/s"]
    assert ("uproot", ["1"]) in asked.asked, "the probe is taken away"


def test_before_a_run_nothing_is_measured(config):
    asked, _ = examined(config, measure=False)
    assert not {"start_trial", "run_trial"} & {method for method, _ in asked.asked}


def test_a_node_that_cannot_answer_is_named_and_asked_no_more(config):
    asked, report = examined(config, look={"2": RuntimeError("could not answer: No module named 'laurel'")})
    assert found(report) == [("cluster", "error", "b")]
    assert "asked to look at itself, it could not answer: No module named 'laurel'" in report.findings[0].what
    assert all("2" not in nodes for method, nodes in asked.asked if method != "look")


def test_a_disk_that_hangs_is_named(config):
    _, report = examined(config, contents={"2": RuntimeError("did not answer within 20 s")})
    assert found(report) == [("cluster", "error", "b")]
    assert "asked to read the files that the settings name" in report.findings[0].what


def test_what_each_round_finds(config):
    files = (config.actor_rollout_ref.model.path, "/d.parquet")
    _, report = examined(
        config,
        clock={"2": time.time() + 500},
        knock={"1": {"b": "no answer within 5 s"}},
        contents={"2": dict.fromkeys(files, Content(problem=MISSING))},
        seek={"2": MISSING},
        run_trial={"2": [Outcome(problem="no result after 14 s")]},
    )
    assert found(report) == [
        ("clock", "warning", "b"),
        ("ports", "error", "a"),
        ("model", "error", "b"),
        ("data", "note", "b"),
        ("checkpoints", "error", "b"),
        ("bandwidth", "error", ""),
    ]
    assert "eth0 on a, eth0 on b" in report.findings[-1].what


def test_a_head_without_a_cpu_is_a_note_unless_it_is_needed(config):
    head = [Node("1", "a", "10.0.0.1", 0, 0), NODES[1]]
    _, report = examined(config, head)
    assert found(report) == [("CPUs", "error", "a")]
    _, report = examined(None, head)
    assert found(report) == [("CPUs", "note", "a")]


def test_gpus_that_the_settings_ask_for(config):
    words = config.trainer.model_copy(update={"device": "cuda", "n_gpus_per_node": 8})
    _, report = examined(config.model_copy(update={"trainer": words}), measure=False)
    few = [one.where for one in report.findings if one.what == "offers 0 GPUs to Ray, 8 are wanted"]
    assert few == ["a", "b"]


def test_this_machine_without_ray(config, tmp_path):
    node = Node("", "this machine", "127.0.0.1", 1, 0)
    folder = tmp_path / "run"
    trainer = config.trainer.model_copy(update={"nnodes": 1, "default_local_dir": str(folder)})
    report = Report()
    here = config.model_copy(update={"trainer": trainer})
    Examination(Here(), [node], here, report, time.monotonic() + 60).run(measure=True)
    assert [one for one in report.findings if one.severity == "error"] == []
    assert "GiB of memory" in str(report.nodes["this machine"])
    assert not folder.exists()
    assert json.loads(report.json())["nodes"]["this machine"]["cores"] >= 1


def test_an_inspector_reaches_its_own_door():
    inspector = Inspector({})
    try:
        assert inspector.knock({"me": inspector.listen("127.0.0.1")}) == {"me": ""}
    finally:
        inspector.close()


def test_nodes_have_names_of_their_own():
    def row(node_id, address, host):
        resources = {"CPU": 2.0}
        return {"NodeID": node_id, "NodeManagerAddress": address, "NodeManagerHostname": host, "Resources": resources}

    rows = [row("aaaaaaaa", "10.0.0.2", "m"), row("bbbbbbbb", "10.0.0.2", "m"), row("cccccccc", "10.0.0.1", "n")]
    assert [(node.name, node.cpus, node.gpus) for node in named(rows, "bbbbbbbb")] == [
        ("node 10.0.0.2 (m, bbbbbb)", 2.0, 0.0),
        ("node 10.0.0.1 (n)", 2.0, 0.0),
        ("node 10.0.0.2 (m, aaaaaa)", 2.0, 0.0),
    ]
