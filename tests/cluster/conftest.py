"""A Ray cluster of two simulated nodes on this machine, apart from any other Ray that runs here."""

import shutil
import tempfile

import pytest
import ray
import torch
from ray.cluster_utils import Cluster

from laurel.batch.token_batch import TokenBatch
from laurel.config.load import load
from laurel.models.tiny import write_tiny_model
from laurel.workers.session import RaySession, refresh_authentication

NODE = {"num_cpus": 1, "object_store_memory": 80 << 20}


@pytest.fixture(scope="module")
def cluster():
    """Two nodes with one CPU each, started as by hand, with a token that only they and this process know."""
    folder = tempfile.mkdtemp(prefix="lt-", dir="/tmp")  # short: Ray puts sockets below it
    patch = pytest.MonkeyPatch()
    patch.setenv("RAY_TMPDIR", folder)
    patch.setenv("RAY_AUTH_MODE", "token")
    patch.setenv("RAY_AUTH_TOKEN", "0123456789abcdef" * 4)
    patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    patch.delenv("RAY_ADDRESS", raising=False)
    refresh_authentication()
    cluster = Cluster(initialize_head=True, head_node_args={**NODE, "include_dashboard": False})
    try:
        cluster.add_node(**NODE)
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()
        patch.undo()
        refresh_authentication()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def session(cluster):
    """Joined as a user's run joins a cluster that was started by hand: nothing but the machine says where it is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("RAY_AUTH_MODE")  # the cluster's own is found
        with RaySession() as session:
            yield session


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory):
    return write_tiny_model(tmp_path_factory.mktemp("tiny") / "model", hidden=32, layers=2)


@pytest.fixture
def config(tiny_model):
    """PPO with a KL loss and a critic, so that every role exists: ``config(nnodes=2, n_gpus_per_node=1)``."""

    def make(**trainer: int):
        overrides = [f"trainer.{name}={value}" for name, value in trainer.items()]
        return load(
            [
                "data.train_files=unused.parquet",
                "data.train_batch_size=6",
                "data.max_prompt_length=8",
                "data.max_response_length=8",
                f"actor_rollout_ref.model.path={tiny_model}",
                "actor_rollout_ref.actor.ppo_mini_batch_size=3",
                "actor_rollout_ref.actor.shuffle=True",
                "actor_rollout_ref.actor.use_kl_loss=True",
                "actor_rollout_ref.actor.optim.lr=1e-3",
                "trainer.device=cpu",
                *overrides,
            ]
        ).config

    return make


@pytest.fixture
def batch():
    """Six groups of one trajectory, 3 prompt tokens and 1 to 6 response tokens each, with what an update needs."""
    generator = torch.Generator().manual_seed(0)
    lengths = torch.tensor([4, 9, 6, 5, 8, 7])
    cu_seqlens = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    positions = torch.cat([torch.arange(int(length)) for length in lengths])
    count = int(lengths.sum())
    return TokenBatch(
        {
            "input_ids": torch.randint(4, 30, (count,), generator=generator),
            "position_ids": positions,
            "response_mask": positions >= 3,
            "advantages": torch.randn(count, generator=generator),
            "returns": torch.randn(count, generator=generator),
        },
        {"index": torch.arange(6), "group": torch.arange(6), "weight": torch.ones(6)},
        cu_seqlens,
    )
