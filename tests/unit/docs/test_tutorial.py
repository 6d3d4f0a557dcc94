"""The files of examples/tutorial are what the commands of its page print, to the byte."""

import re
import shlex
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from laurel.cli.app import app

FOLDER = Path(__file__).resolve().parents[3] / "examples" / "tutorial"
PAGE = (FOLDER / "README.md").read_text(encoding="utf-8")
COMMANDS = {
    target.strip(): command.replace("\\\n", " ")
    for command, target in re.findall(r"```bash\n(laurel launch [^>]*)> (\S+)\n```", PAGE)
}


@pytest.fixture
def data(tmp_path, monkeypatch):
    """What the preprocessing scripts would have written, as far as the settings are checked by it."""
    monkeypatch.chdir(tmp_path)
    row = {"data_source": "openai/gsm8k", "prompt": [{"role": "user", "content": "1+1?"}], "ability": "math"}
    row |= {"reward_model": {"style": "rule", "ground_truth": "2"}, "extra_info": {"index": 0}}
    for name in ("gsm8k", "math"):
        folder = tmp_path / "data" / name
        folder.mkdir(parents=True)
        for split in ("train", "test"):
            pq.write_table(pa.Table.from_pylist([row] * 1024), folder / f"{split}.parquet")


@pytest.mark.parametrize("target", COMMANDS)
def test_each_file_is_what_its_command_prints(target, data):
    done = CliRunner().invoke(app, shlex.split(COMMANDS[target])[1:])
    assert done.exit_code == 0, done.output
    assert done.stdout == (FOLDER / target).read_text(encoding="utf-8")


def test_every_file_has_its_command():
    kept = {str(path.relative_to(FOLDER)) for path in FOLDER.rglob("*") if path.is_file() and path.name != "README.md"}
    assert kept == set(COMMANDS)
