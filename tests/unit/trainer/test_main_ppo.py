"""The main job's command line: what is said, and the exit code."""

import json
import sys
import types

import pytest

from laurel.trainer.main_ppo import main, parse
from laurel.types import ConfigError, LaurelError, Problem


@pytest.fixture
def words(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    row = {"data_source": "laurel/arithmetic", "prompt": "1+1", "reward_model": {"ground_truth": "2"}}
    (tmp_path / "train.jsonl").write_text((json.dumps(row) + "\n") * 8)
    return [
        "data.train_files=train.jsonl",
        "data.train_batch_size=4",
        "actor_rollout_ref.model.path=org/model",
        "trainer.device=cpu",
    ]


@pytest.fixture(autouse=True)
def fetched(monkeypatch):
    """Stands in for fetching a hub id; remembers what was fetched and hands out the problems put in ``found``."""
    room = types.SimpleNamespace(models=[], found=[])

    def check_fetched(config, *, say):
        room.models.append(config.actor_rollout_ref.model.path)
        return room.found

    monkeypatch.setattr("laurel.trainer.main_ppo.check_fetched", check_fetched)
    return room


@pytest.fixture
def training(monkeypatch):
    """Stands in for laurel.trainer.train, whose import is heavy; remembers what it was asked to run."""
    room = types.ModuleType("laurel.trainer.train")
    room.seen = []
    room.run = lambda loaded: room.seen.append(loaded) or 0
    monkeypatch.setitem(sys.modules, "laurel.trainer.train", room)
    return room


def test_options_stand_apart_from_settings():
    options = parse(["a=1", "--dry-run", "--config", "f.yaml", "b=2"])
    assert options.settings == ("a=1", "--config", "f.yaml", "b=2")
    assert (options.dry_run, options.help, options.keys) == (True, False, False)


def test_a_good_command_line_runs(words, training, capsys):
    assert main([*words, "trainer.balance_batch=True"]) == 0
    assert training.seen[0].config.data.train_batch_size == 4
    assert "note: trainer.balance_batch has no job here" in capsys.readouterr().out


def test_problems_of_settings_and_rooms_come_together_and_nothing_starts(words, training, capsys):
    assert main([*words, "trainer.nnode=2", "trainer.logger=[]", "data.val_files=/no/such.parquet"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: 3 problems in the configuration:\n")
    for field in ("trainer.nnode=2", "trainer.logger=[]", "data.val_files='/no/such.parquet'"):
        assert field in error
    assert training.seen == []


def test_what_only_follows_from_a_typing_error_is_not_said(words, capsys):
    assert main([word.replace("train_files", "train_file") for word in words]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: 1 problem in the configuration:\n")
    assert "did you mean data.train_files?" in error


def test_a_model_is_fetched_and_looked_at_before_anything_starts(words, training, fetched, capsys):
    fetched.found = [Problem("actor_rollout_ref.model.path", "org/model", "has a softcap; choose another model")]
    assert main(words) == 2
    assert fetched.models == ["org/model"]
    assert "has a softcap" in capsys.readouterr().err
    assert training.seen == []


def test_dry_run_shows_the_plan_and_starts_nothing(words, training, fetched, capsys):
    assert main([*words, "--dry-run"]) == 0
    assert fetched.models == []
    out = capsys.readouterr().out
    assert "  * train_batch_size = 4\n" in out
    assert "4 prompts x 1 = 4 trajectories" in out
    assert training.seen == []


def test_problems_of_the_machine_are_warnings_of_a_dry_run_alone(words, training, capsys):
    vllm = "actor_rollout_ref.rollout.name=vllm"
    assert main([*words, vllm, "--dry-run"]) == 0
    assert "warning: on this machine, actor_rollout_ref.rollout.name='vllm'" in capsys.readouterr().out
    assert main([*words, vllm]) == 2
    assert "actor_rollout_ref.rollout.name='vllm'" in capsys.readouterr().err
    assert training.seen == []


def test_dry_run_still_refuses_wrong_settings(words, capsys):
    assert main([*words, "trainer.nnodes=two", "--dry-run"]) == 2
    assert "must be a whole number" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("raised", "code", "said"),
    [
        (LaurelError("node 2 did not join"), 1, "error: node 2 did not join"),
        (ConfigError([Problem("data.seed", 1, "is odd")]), 2, "data.seed=1: is odd"),
        (KeyboardInterrupt(), 130, "error: interrupted"),
    ],
)
def test_errors_of_a_run_without_a_traceback(words, training, capsys, raised, code, said):
    def run(loaded):
        raise raised

    training.run = run
    assert main(words) == code
    assert said in capsys.readouterr().err


def test_other_errors_keep_their_traceback(words, training):
    def run(loaded):
        raise ZeroDivisionError

    training.run = run
    with pytest.raises(ZeroDivisionError):
        main(words)


def test_the_exit_code_of_a_run_is_handed_on(words, training):
    training.run = lambda loaded: 3
    assert main(words) == 3


def test_help_and_keys(capsys):
    assert main(["--help"]) == 0
    assert "usage: python3 -m laurel.trainer.main_ppo KEY=VALUE" in capsys.readouterr().out
    assert main([]) == 2
    assert "--keys [PATTERN]" in capsys.readouterr().out
    assert main(["--keys", "kl_coef"]) == 0
    assert "algorithm.kl_ctrl.kl_coef=0.001" in capsys.readouterr().out
