"""The `laurel` command: what each command calls, and that its help is quick and teaches."""

import subprocess
import sys
import types

import pytest
from typer.testing import CliRunner

from laurel.cli import app
from laurel.types import LaurelError

runner = CliRunner()


def call(*words):
    return runner.invoke(app, list(words))


def stand_in(monkeypatch, name, **functions):
    room = types.ModuleType(name)
    for function, value in functions.items():
        setattr(room, function, value)
    monkeypatch.setitem(sys.modules, name, room)
    package, _, attribute = name.rpartition(".")
    monkeypatch.setattr(__import__(package, fromlist=["_"]), attribute, room, raising=False)


@pytest.fixture
def main_ppo(monkeypatch):
    import laurel.trainer.main_ppo as room

    seen = []
    monkeypatch.setattr(room, "main", lambda words, *, command: seen.append((command, words)) or 5)
    return seen


def test_train_hands_every_word_on(main_ppo):
    words = ["a.b=1", "+c=2", "~d", "trainer.logger=['x','y']", "data.train_max_samples=-1", "--config-path", "q"]
    assert call("train", *words).exit_code == 5
    command, seen = main_ppo[0]
    assert command == "laurel train"
    assert sorted(seen) == sorted(words)


def test_options_of_train(main_ppo):
    call("train", "a=1", "--config", "f.yaml", "--dry-run", "--config", "g.yaml")
    assert main_ppo[0][1] == ["a=1", "--config", "f.yaml", "--config", "g.yaml", "--dry-run"]
    call("train", "--keys", "lr")
    assert main_ppo[1][1] == ["lr", "--keys"]
    call("train", "--keys")
    assert main_ppo[2][1] == ["--keys"]


def test_validate_is_train_that_only_validates(main_ppo):
    call("validate", "a=1", "--dry-run")
    assert main_ppo == [("laurel validate", ["a=1", "trainer.val_only=True", "--dry-run"])]


def test_train_without_words_shows_its_help():
    result = call("train")
    assert result.exit_code == 2
    assert "KEY=VALUE" in result.output


def test_train_reports_problems_as_the_module_does():
    result = call("train", "trainer.nnode=2", "data.train_files=/no.parquet", "actor_rollout_ref.model.path=org/m")
    assert result.exit_code == 2
    assert "did you mean trainer.nnodes?" in result.output


def test_export(monkeypatch, tmp_path):
    seen = []
    stand_in(monkeypatch, "laurel.learner.export", export_checkpoint=lambda *folders: seen.append(folders))
    result = call("export", str(tmp_path / "global_step_2"), str(tmp_path / "out"))
    assert result.exit_code == 0
    assert seen == [(tmp_path / "global_step_2", tmp_path / "out")]
    assert f"wrote {tmp_path / 'out'}" in result.output.replace("\n", "")


def test_known_errors_come_without_a_traceback(monkeypatch):
    def refuse(*folders):
        raise LaurelError("x is no checkpoint; give a folder global_step_N")

    stand_in(monkeypatch, "laurel.learner.export", export_checkpoint=refuse)
    result = call("export", "x", "y")
    assert result.exit_code == 1
    assert result.output == "error: x is no checkpoint; give a folder global_step_N\n"


def test_quickstart(monkeypatch):
    seen = []
    stand_in(monkeypatch, "laurel.trainer.quickstart", run=lambda words: seen.append(words) or 4)
    assert call("quickstart", "trainer.seed=2").exit_code == 4
    assert seen == [["trainer.seed=2"]]


def test_data_arithmetic_writes_files(tmp_path):
    result = call("data", "arithmetic", "--local_save_dir", str(tmp_path), "--highest", "9", "--val_size", "5")
    assert result.exit_code == 0
    assert {path.name for path in tmp_path.iterdir()} == {"train.parquet", "test.parquet"}


@pytest.mark.parametrize(("name", "module"), [("gsm8k", "gsm8k"), ("math", "math_dataset")])
def test_data_sets_are_written_by_their_room(monkeypatch, tmp_path, name, module):
    seen = []
    stand_in(
        monkeypatch,
        f"laurel.data.preprocess.{module}",
        write=lambda folder, local=None: seen.append((folder, local)) or [folder / "train.parquet"],
    )
    assert call("data", name, "--local_save_dir", "out", "--local_dataset_path", str(tmp_path)).exit_code == 0
    assert [(str(folder), local) for folder, local in seen] == [("out", tmp_path)]


@pytest.mark.parametrize(
    ("words", "taught"),
    [
        ([], "laurel quickstart"),
        (["train"], "--keys lr"),
        (["train"], "[console,wandb]"),
        (["train"], "~trainer.nnodes"),
        (["validate"], "trainer.resume_from_path"),
        (["data"], "gsm8k"),
        (["data", "gsm8k"], "--local_dataset_path"),
        (["export"], "from_pretrained"),
        (["quickstart"], "laurel train --help"),
    ],
)
def test_help_teaches(words, taught):
    result = call(*words, "--help")
    assert result.exit_code == 0
    assert taught in result.output


def test_help_imports_nothing_heavy():
    script = (
        "import sys\nfrom laurel.cli import app\n"
        "try:\n    app(['--help'])\nexcept SystemExit:\n    pass\n"
        "heavy = {'torch', 'transformers', 'ray', 'pyarrow', 'numpy'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_doctor_hands_on_settings_and_address_and_ends_with_the_code_of_the_report(monkeypatch, tmp_path):
    seen = []

    class Report:
        code = 1

        def text(self):
            return "for people"

        def json(self):
            return "for programs"

    def visit(address, reading):
        seen.append((address, reading))
        return Report()

    stand_in(monkeypatch, "laurel.preflight.doctor.visit", visit=visit)
    bare = call("doctor")
    assert (bare.exit_code, bare.output, seen.pop()) == (1, "for people\n", (None, None))
    (tmp_path / "run.yaml").write_text("trainer: {nnodes: 3}")
    words = [
        "--address",
        "10.0.0.1:6379",
        "--json",
        "--config",
        str(tmp_path / "run.yaml"),
        "data.seed=7",
        "nonsense=1",
    ]
    assert call("doctor", *words).output == "for programs\n"
    ((address, reading),) = seen
    config = reading.loaded.config
    assert (address, config.trainer.nnodes, config.data.seed) == ("10.0.0.1:6379", 3, 7)
    assert [problem.field for problem in reading.problems] == ["nonsense"]
