import json
from types import SimpleNamespace

import pytest

from laurel.config.load import load
from laurel.learner.checkpoint import begin_checkpoint, commit_checkpoint
from laurel.rollout.filter_groups import NothingToLearn
from laurel.trainer.checkpoints import config_changes, find_checkpoint, kept_if_nothing_to_learn, restore
from laurel.trainer.roles import NoCritic, Roles
from laurel.trainer.run_state import RunState
from laurel.types import LaurelError


def test_changed_settings_are_named_with_both_values():
    old = load(["actor_rollout_ref.actor.optim.lr=1e-6", "trainer.device=cpu"]).config.model_dump(mode="json")
    new = load(["actor_rollout_ref.actor.optim.lr=1e-5", "trainer.device=cpu"]).config
    assert config_changes(old, new) == [
        "actor_rollout_ref.actor.optim.lr: 1e-06 in the checkpoint, now 1e-05 (this one counts)"
    ]


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


def end_of_a_step(*, step: int, error: Exception):
    """A run at ``step`` whose next one draws 32 prompts and ends with ``error``; the run, and what was saved."""
    saved = []
    saver = SimpleNamespace(complete=lambda state: saved.append((state.step, state.consumed)))
    run = SimpleNamespace(state=RunState(step=step, consumed=64, policy_version=step), saver=saver)

    def train_step() -> None:
        with kept_if_nothing_to_learn(run):
            run.state.step += 1
            run.state.consumed += 32
            raise error

    with pytest.raises(type(error)):
        train_step()
    return run, saved


def test_a_step_that_finds_nothing_to_learn_leaves_a_checkpoint_of_those_before():
    run, saved = end_of_a_step(step=4, error=NothingToLearn("x"))
    assert saved == [(4, 64)]
    assert run.state == RunState(step=4, consumed=64, policy_version=4)


def test_there_is_nothing_to_keep_before_the_first_step():
    assert end_of_a_step(step=0, error=NothingToLearn("x"))[1] == []


def test_other_errors_save_nothing():
    run, saved = end_of_a_step(step=4, error=LaurelError("x"))
    assert (saved, run.state.step) == ([], 5)


def test_a_run_does_not_start_anew_where_every_checkpoint_is_damaged(tmp_path):
    """What is lost is named, each with its reason; only what the user says starts anew."""
    trainer = load(["trainer.device=cpu"]).config.trainer
    assert find_checkpoint(trainer, tmp_path) is None
    begin_checkpoint(tmp_path, 3)
    assert find_checkpoint(trainer, tmp_path) is None, "what was never finished is no loss"
    newer = commit_checkpoint(begin_checkpoint(tmp_path, 1))
    manifest = json.loads((newer / "manifest.json").read_text())
    (newer / "manifest.json").write_text(json.dumps(manifest | {"format_version": 99}))
    (commit_checkpoint(begin_checkpoint(tmp_path, 2)) / "manifest.json").write_text("{")
    with pytest.raises(LaurelError) as refused:
        find_checkpoint(trainer, tmp_path)
    assert f"{tmp_path}/global_step_1: its format_version 99 is newer" in str(refused.value)
    assert f"{tmp_path}/global_step_2: its manifest.json cannot be read" in str(refused.value)
    assert "trainer.resume_mode=disable" in str(refused.value)
    anew = trainer.model_copy(update={"resume_mode": "disable"})
    assert find_checkpoint(anew, tmp_path) is None
