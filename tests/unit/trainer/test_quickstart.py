"""The quickstart around its training: what is refused before anything is written, and what is said at the end."""

import json
from pathlib import Path

import pytest

from laurel.config.load import load
from laurel.tracking.samples import Sample
from laurel.trainer import quickstart as room
from laurel.trainer.quickstart import command, conclude, require_right, words
from laurel.trainer.report import Report
from laurel.types import ConfigError, LaurelError


@pytest.fixture(autouse=True)
def empty_home(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def fields(*overrides: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        require_right(overrides)
    return [problem.field for problem in caught.value.problems]


def test_what_is_still_to_be_made_is_no_problem(tmp_path):
    require_right(["trainer.device=cpu"])
    assert list(tmp_path.iterdir()) == []


def test_a_preset_lies_over_the_quickstart_s_own_settings(tmp_path):
    preset = str(room.settings_file().with_name("algorithms") / "dapo.yaml")
    here = {name: tmp_path / name for name in ("model", "train", "val", "folder")}
    config = load(words(["--config", preset, "trainer.device=cpu", "data.train_batch_size=8"], **here)).config
    assert config.algorithm.filter_groups.enable
    assert config.reward.reward_kwargs == {
        "format_score": 0.1,
        "overlong_buffer_cfg": {"enable": True, "penalty_factor": 1.0, "log": False},
    }
    assert (config.actor_rollout_ref.rollout.n, config.data.train_batch_size, config.data.max_response_length) == (
        16,
        8,
        6,
    )
    require_right(["--config", preset, "trainer.device=cpu"])


def test_wrong_settings_are_refused_before_anything_is_written(tmp_path):
    assert fields("trainer.totl_training_steps=2") == ["trainer.totl_training_steps"]
    assert fields("trainer.device=cpu", "trainer.logger=[]") == ["trainer.logger"]
    assert fields("trainer.device=cpu", "actor_rollout_ref.rollout.n=1") == ["actor_rollout_ref.rollout.n"]
    assert fields("trainer.device=cpu", "data.val_files=/no/such.parquet") == ["data.val_files"]
    assert list(tmp_path.iterdir()) == []


def test_the_plot_needs_its_package_from_the_start(monkeypatch):
    monkeypatch.setattr(room, "find_spec", lambda name: None)
    with pytest.raises(LaurelError, match="pip install matplotlib"):
        require_right(["trainer.device=cpu"])


def report(folder: Path, *steps: int) -> Report:
    sample = Sample(0, 0, "laurel/arithmetic", "1+1=", "2", "2", 1.0, "stop", {"acc": 1.0})
    metrics = {"val-core/laurel/arithmetic/acc/mean@1": 0.5}
    with (folder / "metrics.jsonl").open("w") as log:
        log.writelines(json.dumps({"step": step, "time": 0.0, **metrics}) + "\n" for step in steps)
    validations = [(step, [sample], metrics) for step in steps]
    return Report(None, None, 1, 1, folder / "validation", None, validations)


def said(folder: Path, capsys, *steps: int, more: tuple[str, ...] = ()) -> str:
    conclude(report(folder, *steps), load([f"trainer.default_local_dir={folder}", *more]).config)
    return capsys.readouterr().out


def test_a_validation_alone_has_no_checkpoint_to_export(tmp_path, capsys):
    text = said(tmp_path, capsys, 0, more=("trainer.val_only=True",))
    assert "laurel export" not in text
    assert "checkpoint" not in text
    assert f"Next:\n  {command()} quickstart trainer.total_training_steps=40\n" in text
    assert (tmp_path / "curve.png").is_file()


def test_training_ends_with_its_checkpoint_and_how_to_export_it(tmp_path, capsys):
    (tmp_path / "LATEST").write_text("global_step_2\n")
    text = said(tmp_path, capsys, 0, 2)
    assert f"laurel export {tmp_path}/global_step_2 my-model" in text
    assert "acc/mean@1: 0.500 before, 0.500 after" in text


def test_laurel_is_named_so_that_it_can_be_called(tmp_path, monkeypatch):
    """By name on PATH, by a short path in a checkout whose environment is not activated, else by its whole path."""
    program = tmp_path / ".venv" / "bin" / "laurel"
    program.parent.mkdir(parents=True)
    program.write_text("")
    program.chmod(0o755)
    monkeypatch.setattr(room.sys, "executable", str(program.with_name("python")))
    monkeypatch.setenv("PATH", str(program.parent))
    assert command() == "laurel"
    monkeypatch.setenv("PATH", "/nowhere")
    assert command() == ".venv/bin/laurel"
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert command() == str(program)
