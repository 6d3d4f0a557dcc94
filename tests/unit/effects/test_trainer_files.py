"""Effects of trainer.* on loggers, samples, checkpoints and where they lie."""

import json
import sys
import time
from types import SimpleNamespace

import pyarrow.parquet
import pytest
from unit.effects.cases import run_of
from unit.effects.registry import effect

from laurel.batch.build import build_batch
from laurel.tracking import loggers
from laurel.trainer.build import prepare
from laurel.trainer.checkpoints import save_checkpoint
from laurel.trainer.stop import Interrupted, build_stop
from laurel.trainer.validate import validate


def saved(config, *steps):
    """Checkpoints of these steps, written by one run."""
    run, _ = run_of(config)
    for step in steps:
        run.state.step = step
        save_checkpoint(run)
        run.saver.finish()
    run.close()
    return sorted(folder.name for folder in run.checkpoint_dir.glob("global_step_*"))


def resumed_step(config):
    run, _ = run_of(config)
    run.close()
    return run.state.step


@effect("trainer.project_name", "trainer.experiment_name")
def test_names_make_the_folder_and_label_the_run(key, settings, tmp_path, monkeypatch):
    started = []
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=lambda **given: started.append(given)))
    for name in ("one", "two"):
        run, _ = run_of(settings("trainer.logger=[wandb]", f"{key}={name}"))
        project, experiment = (name, "default") if key == "trainer.project_name" else ("laurel", name)
        assert run.checkpoint_dir == tmp_path / "checkpoints" / project / experiment
        assert (started[-1]["project"], started[-1]["name"]) == (project, experiment)


@effect("trainer.default_local_dir")
def test_default_local_dir_holds_checkpoints_and_log(key, settings, tmp_path):
    for given, folder in (((), "checkpoints/laurel/default"), ((f"{key}=mine",), "mine")):
        config = settings(*given)
        assert saved(config, 1) == ["global_step_1"]
        assert prepare(config).checkpoint_dir == tmp_path / folder
        assert (tmp_path / folder / "metrics.jsonl").is_file()
        assert (tmp_path / folder / "global_step_1" / "run_state.json").is_file()


@effect("trainer.logger")
def test_logger_chooses_where_metrics_go(key, settings, tmp_path, capsys):
    for names, printed, written in (
        ("[console]", True, False),
        ("[file]", False, True),
        ("[console,file]", True, True),
    ):
        run, _ = run_of(settings(f"{key}={names}", f"trainer.default_local_dir={tmp_path}/{names}"))
        capsys.readouterr()
        run.report.loggers.log(1, {"actor/pg_loss": 0.25})
        run.close()
        assert ("loss 0.25" in capsys.readouterr().out) is printed
        log = tmp_path / names / loggers.JSONL_NAME
        assert log.exists() is written
        assert not written or json.loads(log.read_text())["actor/pg_loss"] == 0.25


@effect("trainer.log_val_generations")
def test_log_val_generations_is_how_many_samples_are_shown(key, settings, capsys):
    for count in (0, 2):
        run, _ = run_of(settings(f"{key}={count}"))
        samples, metrics = validate(run)
        capsys.readouterr()
        run.report.validation(0, samples, metrics)
        run.close()
        assert len(samples) == 3
        assert capsys.readouterr().out.count("step 0 sample") == count


@effect("trainer.rollout_data_dir")
def test_rollout_data_dir_keeps_training_samples(key, settings, tmp_path):
    for given, kept in (((), []), ((f"{key}=mine",), ["1.jsonl"])):
        run, _ = run_of(settings(*given))
        groups, _ = run.roles.rollouts.collect(run.next_prompts, step=1)
        run.state.step = 1
        run.report.step(run.state, groups, build_batch(groups), {})
        run.close()
        assert [path.name for path in (tmp_path / "mine").glob("*")] == kept
    rows = [json.loads(line) for line in (tmp_path / "mine" / "1.jsonl").read_text().splitlines()]
    assert [row["response"] for row in rows] == ["42"] * 4


@effect("trainer.validation_data_dir")
def test_validation_data_dir_keeps_validation_samples(key, settings, tmp_path):
    for given, folder in (((), "checkpoints/laurel/default/validation"), ((f"{key}=mine",), "mine")):
        run, _ = run_of(settings(*given))
        assert not (tmp_path / folder).exists()
        run.report.validation(7, *validate(run))
        run.close()
        table = pyarrow.parquet.read_table(tmp_path / folder / "step_7.parquet")
        assert table.column("response").to_pylist() == ["42"] * 3


@effect("trainer.max_actor_ckpt_to_keep")
def test_only_the_newest_checkpoints_are_kept(key, settings):
    kept = [
        saved(settings(f"trainer.default_local_dir={folder}", *given), 1, 2, 3)
        for folder, given in (("all", ()), ("two", (f"{key}=2",)), ("one", (f"{key}=1",)))
    ]
    assert kept == [
        ["global_step_1", "global_step_2", "global_step_3"],
        ["global_step_2", "global_step_3"],
        ["global_step_3"],
    ]


@effect("trainer.resume_mode")
def test_resume_mode_decides_where_to_go_on(key, settings, tmp_path):
    saved(settings(), 3, 5)
    older = f"trainer.resume_from_path={tmp_path}/checkpoints/laurel/default/global_step_3"
    found = {mode: resumed_step(settings(older, f"{key}={mode}")) for mode in ("auto", "disable", "resume_path")}
    assert found == {"auto": 5, "disable": 0, "resume_path": 3}


@effect("trainer.resume_from_path")
@pytest.mark.parametrize("step", [3, 5])
def test_resume_from_path_is_where_to_go_on(key, settings, tmp_path, step):
    saved(settings(), 3, 5)
    folder = tmp_path / "checkpoints" / "laurel" / "default" / f"global_step_{step}"
    assert resumed_step(settings("trainer.resume_mode=resume_path", f"{key}={folder}")) == step


@effect("trainer.max_walltime")
def test_max_walltime_is_when_the_run_is_asked_to_end(key, settings):
    requested = {}
    for seconds in ("1", "1000"):
        started = time.monotonic()
        with build_stop(settings(f"{key}={seconds}").trainer.max_walltime) as stop, stop.at_checks():
            while not stop.requested and time.monotonic() - started < 3:
                time.sleep(0.02)
            requested[seconds] = (stop.requested, time.monotonic() - started)
            if stop.requested:
                with pytest.raises(Interrupted):
                    stop.check()
    assert requested["1"][0] == "trainer.max_walltime"
    assert 0.9 < requested["1"][1] < 2.5
    assert requested["1000"][0] == ""
