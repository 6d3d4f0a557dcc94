import json
from types import SimpleNamespace

import pytest

from laurel.config.load import load
from laurel.rollout.filter_groups import NothingToLearn
from laurel.trainer import checkpoints
from laurel.trainer.checkpoints import config_changes, kept_if_nothing_to_learn, require_shards, restore
from laurel.trainer.roles import NoCritic, Roles
from laurel.trainer.run_state import RunState
from laurel.types import LaurelError


def test_changed_settings_are_named_with_both_values():
    old = load(["actor_rollout_ref.actor.optim.lr=1e-6", "trainer.device=cpu"]).config.model_dump(mode="json")
    new = load(["actor_rollout_ref.actor.optim.lr=1e-5", "trainer.device=cpu"]).config
    assert config_changes(old, new) == [
        "actor_rollout_ref.actor.optim.lr: 1e-06 in the checkpoint, now 1e-05 (this one counts)"
    ]


def write_state(folder, shards: int) -> None:
    folder.mkdir()
    (folder / "state.json").write_text(json.dumps({"format_version": 1, "shards": shards}))


def test_shards_on_another_nodes_disk_are_missed_when_saving(tmp_path):
    write_state(tmp_path / "actor", 2)
    (tmp_path / "actor" / "shard-00000-of-00002.safetensors").touch()
    with pytest.raises(LaurelError, match=r"lacks shard-00001-of-00002.safetensors .* trainer.default_local_dir"):
        require_shards(tmp_path)
    (tmp_path / "actor" / "shard-00001-of-00002.safetensors").touch()
    require_shards(tmp_path)


class Actor:
    def load(self, folder) -> None:
        assert folder.name == "actor"


def kl_after_resume(tmp_path, stored: list[str], now: list[str]) -> float:
    """kl_coef of a run that goes on from a checkpoint whose controller had arrived at 0.07."""
    settings = ["trainer.device=cpu", "algorithm.kl_ctrl.kl_coef=0.01"]
    before, config = load(settings + stored).config, load(settings + now).config
    RunState(step=5, consumed=40, policy_version=5, kl_coef=0.07).save(tmp_path)
    (tmp_path / "manifest.json").write_text(json.dumps({"config": before.model_dump(mode="json")}))
    state = RunState()
    restore(tmp_path, config, Roles(Actor(), None, NoCritic(), None, None), state)
    assert (state.step, state.consumed, state.policy_version) == (5, 40, 5)
    return state.kl_coef


def test_an_adaptive_controller_goes_on_from_where_it_was(tmp_path):
    adaptive = ["algorithm.kl_ctrl.type=adaptive"]
    assert kl_after_resume(tmp_path, adaptive, adaptive) == 0.07


def test_a_changed_kl_weight_counts_after_a_resume(tmp_path):
    adaptive = ["algorithm.kl_ctrl.type=adaptive"]
    assert kl_after_resume(tmp_path, [], ["algorithm.kl_ctrl.kl_coef=0.5"]) == 0.5
    assert kl_after_resume(tmp_path, adaptive, [*adaptive, "algorithm.kl_ctrl.target_kl=0.3"]) == 0.01
    assert kl_after_resume(tmp_path, adaptive, []) == 0.01


def end_of_a_step(tmp_path, monkeypatch, *, step: int, error: Exception):
    """A run at ``step`` whose next one draws 32 prompts and ends with ``error``; the run, and what was saved."""
    saved = []
    run = SimpleNamespace(state=RunState(step=step, consumed=64, policy_version=step), checkpoint_dir=tmp_path)
    monkeypatch.setattr(checkpoints, "save_checkpoint", lambda run: saved.append((run.state.step, run.state.consumed)))

    def train_step() -> None:
        with kept_if_nothing_to_learn(run):
            run.state.step += 1
            run.state.consumed += 32
            raise error

    with pytest.raises(type(error)):
        train_step()
    return run, saved


def test_a_step_that_finds_nothing_to_learn_leaves_a_checkpoint_of_those_before(tmp_path, monkeypatch):
    run, saved = end_of_a_step(tmp_path, monkeypatch, step=4, error=NothingToLearn("x"))
    assert saved == [(4, 64)]
    assert run.state == RunState(step=4, consumed=64, policy_version=4)


def test_there_is_nothing_to_keep_before_the_first_step_or_after_a_save(tmp_path, monkeypatch):
    assert end_of_a_step(tmp_path, monkeypatch, step=0, error=NothingToLearn("x"))[1] == []
    (tmp_path / "global_step_4").mkdir()
    assert end_of_a_step(tmp_path, monkeypatch, step=4, error=NothingToLearn("x"))[1] == []


def test_other_errors_save_nothing(tmp_path, monkeypatch):
    run, saved = end_of_a_step(tmp_path, monkeypatch, step=4, error=LaurelError("x"))
    assert (saved, run.state.step) == ([], 5)
