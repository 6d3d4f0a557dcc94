"""A tiny folder with random weights, and torch on one thread."""

import pytest
import torch

from benchmarks.shapes import write_folder


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    return write_folder("tiny", tmp_path_factory.mktemp("models"))


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def rows(capsys):
    """The rows that were printed since the last call."""
    from benchmarks.record import parse

    return lambda: [row for line in capsys.readouterr().out.splitlines() if (row := parse(line)) is not None]
