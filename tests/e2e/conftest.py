"""One Ray, one task and one tiny model for all runs of this folder."""

import pytest

from e2e.reversal import write_task
from e2e.runs import run_here
from laurel.workers.session import RaySession


@pytest.fixture(scope="session")
def task(tmp_path_factory):
    return write_task(tmp_path_factory.mktemp("reversal"))


@pytest.fixture(scope="package")
def shared_ray():
    """Ray takes longer to start than most of these runs; main_ppo uses the connection that this process holds."""
    with RaySession({"num_cpus": 2}) as session:
        yield session


@pytest.fixture(scope="session")
def limits(tmp_path_factory):
    """What every run of the task is given: short texts, a private cache, sampled validation."""
    return [
        "data.max_prompt_length=8",
        "data.max_response_length=4",
        f"data.cache_dir={tmp_path_factory.mktemp('cache')}",
        "actor_rollout_ref.rollout.val_kwargs.do_sample=True",
    ]


@pytest.fixture
def train(task, limits, shared_ray, tmp_path):
    """``train("trainer.seed=1", name="a")``: one run of the reversal task in this process."""

    def start(*arguments: str, name: str = "run", train_file=None):
        return run_here([*task.arguments(train=train_file), *limits, *arguments], tmp_path / name)

    return start
