"""The doctor's look at the nodes of a run, on two simulated nodes of one machine."""

import pytest
import ray

from laurel.preflight.doctor.finding import NodesError
from laurel.preflight.doctor.visit import before_run
from laurel.rewards.reward_fn import RewardFn
from laurel.types import Prompt
from laurel.workers.everywhere import Posts
from laurel.workers.placement import alive_nodes

PROMPT = Prompt(0, (1,), ({"role": "user", "content": "1+1="},), "laurel/arithmetic", "2")


class Counter:
    def __init__(self, start):
        self.value = start

    def add(self, number):
        if number < 0:
            raise ValueError("only upwards")
        self.value += number
        return self.value


def test_an_object_on_each_node_keeps_what_it_knows(session):
    rows = [row for row in ray.nodes() if row["Alive"]]
    ids = [row["NodeID"] for row in rows]
    with Posts(Counter, rows, 10) as posts:
        first = posts.ask("add", dict.fromkeys(ids, (1,)), deadline_s=30)
        second = posts.ask("add", {ids[0]: (5,)}, deadline_s=30)
        wrong = posts.ask("add", {ids[1]: (-1,)}, deadline_s=30)
        assert ray.available_resources()["CPU"] == ray.cluster_resources()["CPU"]
    assert {node_id: answer.result for node_id, answer in first.items()} == dict.fromkeys(ids, 11)
    assert {node_id: answer.result for node_id, answer in second.items()} == {ids[0]: 16}
    assert "only upwards" in wrong[ids[1]].error


@pytest.fixture
def given(config):
    """Settings with a checkpoint folder, and perhaps a reward function of the user."""

    def make(folder, function=None):
        base = config(nnodes=2)
        custom = base.reward.custom_reward_function.model_copy(update={"path": function})
        reward = base.reward.model_copy(update={"custom_reward_function": custom})
        trainer = base.trainer.model_copy(update={"default_local_dir": str(folder)})
        return base.model_copy(update={"trainer": trainer, "reward": reward})

    return make


def test_a_healthy_run_is_told_nothing_and_leaves_nothing(session, given, tmp_path):
    said = []
    before_run(given(tmp_path / "run"), alive_nodes(), [PROMPT], RewardFn(), say=said.append)
    assert said == []
    assert list(tmp_path.iterdir()) == []


def test_an_error_ends_it(session, given, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(NodesError, match=r"this run would fail(.|\n)*cannot be written: not a directory"):
        before_run(given(tmp_path / "file" / "run"), alive_nodes(), [PROMPT], RewardFn(), say=print)


def test_a_warning_is_said(session, given, tmp_path):
    said = []
    nothing = RewardFn(custom=("mine.py:compute_score", lambda **words: 0.0))
    before_run(given(tmp_path / "run", "mine.py"), alive_nodes(), [PROMPT], nothing, say=said.append)
    assert any("the gold answer '2' scores 0, a wrong one 0" in line for line in said)
