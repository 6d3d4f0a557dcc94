"""The whole job on two nodes gives the weights that it gives on one node with as many ranks."""

import pytest
from e2e.reversal import write_task
from e2e.runs import counts, differences, run_here, whole_tensors

import laurel.workers.group as group_module

COMMON = [
    "data.max_prompt_length=8",
    "data.max_response_length=4",
    "actor_rollout_ref.actor.optim.lr=1e-3",
    "trainer.total_training_steps=3",
    "trainer.save_freq=1",
    "trainer.val_before_train=False",
]
GRPO = [
    *COMMON,
    "algorithm.adv_estimator=grpo",
    "data.train_batch_size=8",
    "actor_rollout_ref.rollout.n=4",
    "actor_rollout_ref.actor.use_kl_loss=True",
]
# 30 prompts in mini-batches of 8: neither divides evenly over the updates, nor always over the ranks.
PPO = [
    *COMMON,
    "algorithm.adv_estimator=gae",
    "algorithm.kl_ctrl.kl_coef=0.001",
    "data.train_batch_size=30",
    "actor_rollout_ref.actor.ppo_mini_batch_size=8",
    "critic.optim.lr=1e-3",
]


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    return write_task(tmp_path_factory.mktemp("reversal"))


@pytest.fixture
def placed(monkeypatch):
    """The id of the node that each rank of each run was on, by rank."""
    runs: list[list[str]] = []
    start_ranks = group_module.start_ranks

    def start_and_note(*arguments, **options):
        handles = start_ranks(*arguments, **options)
        runs.append([handle.member.node_id for handle in handles])
        return handles

    monkeypatch.setattr(group_module, "start_ranks", start_and_note)
    return runs


@pytest.mark.parametrize("algorithm", [GRPO, PPO], ids=["grpo", "ppo"])
def test_two_nodes_of_one_rank_equal_one_node_of_two(algorithm, task, session, placed, tmp_path):
    def run(nodes: int, ranks: int):
        words = [f"trainer.nnodes={nodes}", f"trainer.n_gpus_per_node={ranks}", f"data.cache_dir={tmp_path / 'cache'}"]
        outcome = run_here([*task.arguments(), *algorithm, *words], tmp_path / f"{nodes}x{ranks}")
        assert outcome.code == 0, outcome.text
        return outcome

    apart, together = run(2, 1), run(1, 2)
    assert [len(ids) for ids in placed] == [2, 2]
    assert [len(set(ids)) for ids in placed] == [2, 1], "node ids differ in the first run and not in the second"

    one, two = whole_tensors(apart.checkpoint(3)), whole_tensors(together.checkpoint(3))
    assert differences(one, two) == [], "bit for bit, optimizer moments included"
    assert counts(apart.checkpoint(3)) == counts(together.checkpoint(3))
    assert apart.numbers() == together.numbers()

    moved = differences(one, whole_tensors(apart.checkpoint(1)))
    assert sorted(moved) == sorted(one), "every tensor moved between the steps"
    roles = {name.partition("/")[0] if "/" in name.partition(":")[0] else name.partition(":")[0] for name in one}
    assert roles == ({"actor", "critic"} if algorithm is PPO else {"actor"})
