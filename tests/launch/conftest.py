"""Launch tests need hosts of their own; where these cannot be made, each test says why it was skipped."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from launch.hosts import FakeHosts, needs_hosts
from launch.ppo import SmallPpo, write_small_ppo


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "hosts(...): what `FakeHosts` is given for the fixture `hosts` of this test")


@pytest.fixture(scope="session")
def host_maker() -> Iterator[Callable[..., FakeHosts]]:
    """``host_maker(2, docker0=True)``: fake hosts until the end of the session."""
    if reason := needs_hosts():
        pytest.skip(reason)
    with ExitStack() as stack:
        yield lambda *words, **more: stack.enter_context(FakeHosts(*words, **more))


@pytest.fixture
def hosts(request: pytest.FixtureRequest) -> Iterator[FakeHosts]:
    """Fake hosts for one test: node1 and node2, or as ``@pytest.mark.hosts(3, docker0=True)`` says."""
    if reason := needs_hosts():
        pytest.skip(reason)
    mark = request.node.get_closest_marker("hosts")
    with FakeHosts(*(mark.args if mark else (2,)), **(mark.kwargs if mark else {})) as made:
        yield made


@pytest.fixture(scope="session")
def small_ppo(tmp_path_factory: pytest.TempPathFactory) -> SmallPpo:
    """A model and data for a PPO run of seconds, written once."""
    return write_small_ppo(tmp_path_factory.mktemp("ppo"))
