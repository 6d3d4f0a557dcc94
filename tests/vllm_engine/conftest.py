"""Tests of the vLLM engine, on vLLM itself: they run in .envs/vllm, whose Python `make test` gives this folder to."""

from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from laurel.config.load import load
from laurel.models.tiny import write_tiny_model
from laurel.rollout.native.engine import NativeEngine
from laurel.workers.engines import build_engine

ENVS = Path(__file__).resolve().parents[2] / ".envs"


def pytest_collection_modifyitems(items):
    if find_spec("vllm") is not None:
        return
    missing = ENVS / "vllm.missing"
    why = missing.read_text().strip() if missing.exists() else "`make test` runs these with the Python of .envs/vllm"
    for item in items:
        if Path(__file__).parent in Path(item.path).parents:
            item.add_marker(pytest.mark.skip(reason=f"no vLLM here: {why}"))


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """A model that vLLM's attention for CPUs serves: heads of 32."""
    return write_tiny_model(tmp_path_factory.mktemp("tiny") / "model", hidden=64, layers=2, heads=2, kv_heads=1)


@pytest.fixture(scope="session")
def configured(folder):
    """The configuration of a run with an engine by name, on a model."""

    def make(name, *more, model=None):
        return load(
            [
                "data.train_files=unused.parquet",
                "data.train_batch_size=2",
                "data.max_prompt_length=32",
                "data.max_response_length=64",
                f"actor_rollout_ref.model.path={model or folder}",
                "actor_rollout_ref.actor.ppo_mini_batch_size=2",
                "actor_rollout_ref.actor.optim.lr=1e-2",
                f"actor_rollout_ref.rollout.name={name}",
                "algorithm.adv_estimator=grpo",
                "trainer.device=cpu",
                "trainer.n_gpus_per_node=1",
                *more,
            ]
        ).config

    return make


@pytest.fixture(scope="session")
def module(folder):
    """The learner's, whose weights every engine below holds. Leave it as it is."""
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


@pytest.fixture(scope="session")
def made(configured):
    """``build_engine`` by name and module; closed in the end."""
    engines = []

    def make(name, module, *more, model=None):
        config = configured(name, *more, model=model)
        engines.append(build_engine(config, module, device=torch.device("cpu"), world=1))
        return engines[-1]

    yield make
    for one in engines:
        one.close()


@pytest.fixture(scope="session")
def vllm(made, module):
    """One for many tests, since it takes seconds to start. Every test leaves it awake, with ``module``'s weights."""
    import asyncio

    from laurel.weights.ways import Buckets

    engine = made("vllm", module)
    asyncio.run(Buckets(module, dtype=torch.float32, device="cpu").publish(engine, 0))
    return engine


@pytest.fixture(scope="session")
def native(module):
    engine = NativeEngine(module, max_slots=16, max_len=96, stop_token_ids=[2])
    yield engine
    engine.close()


@pytest.fixture(params=["native", "vllm"])
def engine(request):
    """Each engine that runs here: the contract holds for all of them."""
    return request.getfixturevalue(request.param)
