"""A tiny model, and the results of runs on two and four ranks, made once."""

import os
import string
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from unit.learner.learner_cases import BUDGET, make_batch, make_learners

from laurel.batch.pack import rank_shares
from laurel.models.tiny import write_tiny_model

REPOSITORY = Path(__file__).resolve().parents[3]
PROGRAM = Path(__file__).with_name("learner_cases.py")


@pytest.fixture(scope="session")
def shared(tmp_path_factory):
    """A folder with ``model``: a tiny Llama with tied weights."""
    folder = tmp_path_factory.mktemp("learner")
    write_tiny_model(folder / "model", characters=string.digits + string.ascii_letters, hidden=32)
    return folder


@pytest.fixture(scope="session")
def model(shared):
    return shared / "model"


@pytest.fixture(scope="session")
def many_ranks(shared, model):
    """The folder after one rank saved a checkpoint and learner_cases.py ran on two ranks, then on four."""
    actor, critic = make_learners(model)
    for learner in (actor, critic):
        learner.update(rank_shares(make_batch(2), 1, BUDGET))
        learner.save(shared / "from1" / learner.role)
    environment = dict(os.environ, PYTHONPATH=str(REPOSITORY), OMP_NUM_THREADS="1")
    done = subprocess.run(
        [sys.executable, str(PROGRAM), str(shared)], env=environment, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    return shared


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
