import subprocess
import sys

from laurel.config.tree import Config
from laurel.workers.check import check


def problems(*, nnodes=1, **ray_init):
    config = Config.model_validate({"ray_kwargs": {"ray_init": ray_init}, "trainer": {"nnodes": nnodes}})
    return [(problem.field, problem.value) for problem in check(config)]


def test_what_laurel_sets_itself_is_refused_and_the_rest_passes(monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert problems(num_cpus=4, address="10.0.0.1:6379", include_dashboard=True) == []
    assert problems(_temp_dir="/x") == [("ray_kwargs.ray_init._temp_dir", "/x")]
    assert problems(num_cpus=0) == [("ray_kwargs.ray_init.num_cpus", 0)]


def test_addresses_that_cannot_work(monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert problems(address="ray://head:10001") == [("ray_kwargs.ray_init.address", "ray://head:10001")]
    assert problems(address="local") == []
    assert problems(address="local", nnodes=2) == [("ray_kwargs.ray_init.address", "local")]
    monkeypatch.setenv("RAY_ADDRESS", "ray://head:10001")
    assert problems() == [("RAY_ADDRESS", "ray://head:10001")]


def test_the_check_is_light():
    code = "import sys, laurel.workers.check; print(sorted({'torch', 'transformers', 'ray'} & sys.modules.keys()))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
