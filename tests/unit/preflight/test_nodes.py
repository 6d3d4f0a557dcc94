"""Nodes and GPUs that cannot be there."""

import sys

import pytest

from laurel.config.load import load
from laurel.preflight import nodes
from laurel.workers.raylets import Raylet


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    """A machine on which no Ray runs, with two GPUs."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.delitem(sys.modules, "ray", raising=False)
    monkeypatch.setattr(nodes, "running_raylets", list)
    monkeypatch.setattr(nodes, "visible_gpus", lambda: 2)


def found(*words):
    return [(problem.field, problem.value) for problem in nodes.check(load(words).config)]


def test_what_this_machine_has_is_no_problem():
    assert found("trainer.device=cuda", "trainer.n_gpus_per_node=2") == []
    assert found("trainer.device=cpu", "trainer.n_gpus_per_node=9") == []


def test_more_than_it_has():
    assert found("trainer.device=cuda", "trainer.n_gpus_per_node=3") == [("trainer.n_gpus_per_node", 3)]
    assert found("trainer.device=cpu", "trainer.nnodes=2") == [("trainer.nnodes", 2)]


def test_no_gpu_at_all(monkeypatch):
    monkeypatch.setattr(nodes, "visible_gpus", lambda: 0)
    assert found("trainer.device=cuda", "trainer.n_gpus_per_node=3") == [("trainer.device", "cuda")]


def test_all_are_problems_of_the_machine():
    assert all(problem.machine for problem in nodes.check(load(["trainer.nnodes=2", "trainer.device=cuda"]).config))


@pytest.mark.parametrize("how", ["variable", "setting", "by hand", "around"])
def test_a_cluster_to_join_decides_for_itself(monkeypatch, how):
    words = ["trainer.nnodes=2", "trainer.device=cuda", "trainer.n_gpus_per_node=8"]
    if how == "variable":
        monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    elif how == "setting":
        words.append("ray_kwargs.ray_init.address=10.0.0.1:6379")
    elif how == "by hand":
        monkeypatch.setattr(nodes, "hand_started_cluster", lambda raylets, uid: Raylet("10.0.0.1:6379", uid))
    else:
        monkeypatch.setitem(sys.modules, "ray", object())
    assert found(*words) == []


def test_a_ray_of_its_own_joins_nothing(monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    assert found("trainer.nnodes=2", "trainer.device=cpu", "ray_kwargs.ray_init.address=local") == [
        ("trainer.nnodes", 2)
    ]
