"""``settings`` loads configurations as the command line does, and sees to it that a test varies the key it observes."""

from types import SimpleNamespace

import pytest
import torch
from unit.effects.cases import ROWS, Ranks, write_rows

from laurel.config.load import load
from laurel.models.tiny import CHARACTERS, write_tiny_model
from laurel.types import ConfigError


class Settings:
    """Loads a configuration from overrides of a small run on this CPU. ``values`` keeps those of the observed key."""

    def __init__(self, key, base):
        self.key, self.base, self.values, self.given = key, base, [], False

    def __call__(self, *overrides):
        return self.loaded(*overrides).config

    def loaded(self, *overrides):
        loaded = load([*self.base, *overrides])
        self.given |= self.key in loaded.given
        value = loaded.config
        for name in self.key.split("."):
            value = getattr(value, name)
        self.values.append(repr(value))
        return loaded

    def refused(self, *overrides):
        """The problem of the observed key; for keys of which this version has one value only."""
        with pytest.raises(ConfigError) as error:
            load([*self.base, *overrides])
        (problem,) = error.value.problems
        assert problem.field == self.key
        self.values.append(f"refused: {problem.value}")
        self.given = True
        return problem

    def assert_varied(self):
        assert self.given, f"no configuration of this test gives {self.key}"
        assert len(set(self.values)) > 1, f"every configuration of this test has {self.key}={self.values[:1]}"


@pytest.fixture(scope="session")
def inputs(tmp_path_factory):
    """``model`` and ``other`` (other weights, another order of characters), ``train.jsonl`` and ``val.jsonl``."""
    folder = tmp_path_factory.mktemp("effects")
    for name, seed, characters in (("model", 0, CHARACTERS), ("other", 1, CHARACTERS[::-1])):
        write_tiny_model(folder / name, hidden=32, layers=2, seed=seed, characters=characters)
    write_rows(folder / "train.jsonl", [f"{i}+{i}=" for i in range(ROWS)])
    write_rows(folder / "val.jsonl", [f"{i}+1=" for i in range(3)])
    return folder


@pytest.fixture
def settings(request, inputs, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    base = [
        f"data.train_files={inputs}/train.jsonl",
        f"data.val_files={inputs}/val.jsonl",
        f"data.cache_dir={tmp_path}/cache",
        "data.train_batch_size=4",
        "data.max_prompt_length=16",
        "data.max_response_length=8",
        f"actor_rollout_ref.model.path={inputs}/model",
        "trainer.device=cpu",
    ]
    loader = Settings(request.node.callspec.params["key"], base)
    yield loader
    loader.assert_varied()


@pytest.fixture
def ranks(monkeypatch):
    """Ranks that keep what they are sent; the clients' object store is this process."""
    monkeypatch.setattr("laurel.workers.clients.ray", SimpleNamespace(put=lambda value: value))
    return Ranks()


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
