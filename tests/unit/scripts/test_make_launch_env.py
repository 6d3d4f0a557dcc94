"""What scripts/make_launch_env.py does about parts that it cannot have, and about those that it has."""

import importlib.util
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[3] / "scripts"


@pytest.fixture
def made(monkeypatch, tmp_path):
    """The script with its folder elsewhere; ``made.calls`` collects what it would make."""
    monkeypatch.syspath_prepend(str(SCRIPTS))
    spec = importlib.util.spec_from_file_location("make_launch_env", SCRIPTS / "make_launch_env.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.calls = []
    monkeypatch.setattr(module, "ENVS", tmp_path)
    monkeypatch.setattr(module, "install_programs", lambda: module.calls.append("system"))
    monkeypatch.setattr(module, "make_environment", lambda name: module.calls.append(name))
    monkeypatch.setattr(module, "download_wheels", lambda: module.calls.append("wheels"))
    yield module
    sys.modules.pop("make_env", None)


def test_each_part_is_made_once_and_again_when_its_inputs_change(made, monkeypatch):
    assert made.main() == 0
    assert sorted(made.calls) == ["dstack", "skypilot", "system", "wheels"]
    assert made.main() == 0
    assert len(made.calls) == 4
    monkeypatch.setitem(made.ENVIRONMENTS, "dstack", ["dstack[server]==9"])
    assert made.main() == 0
    assert made.calls[4:] == ["dstack"]


def test_a_part_that_fails_is_said_and_tried_again(made, monkeypatch, capsys, tmp_path):
    def fail():
        raise made.Unavailable("no network")

    monkeypatch.setattr(made, "download_wheels", fail)
    assert made.main() == 0
    assert capsys.readouterr().out.count("without wheels, tests that need it will be skipped: no network") == 1
    assert (tmp_path / "wheels.missing").read_text() == "no network\n"
    monkeypatch.setattr(made, "download_wheels", lambda: made.calls.append("wheels"))
    made.main()
    assert made.calls.count("wheels") == 1
    assert not (tmp_path / "wheels.missing").exists()


def test_programs_are_left_to_root(made, monkeypatch):
    spec = importlib.util.spec_from_file_location("fresh", SCRIPTS / "make_launch_env.py")
    fresh = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(fresh)
    monkeypatch.setattr(fresh, "find", lambda program: None if program in ("slurmd", "rsync") else "/bin/x")
    monkeypatch.setattr(fresh.shutil, "which", lambda name: "/usr/bin/apt-get")
    monkeypatch.setattr(fresh.os, "geteuid", lambda: 1000)
    with pytest.raises(fresh.Unavailable, match="needs root: apt-get install --no-install-recommends slurmd rsync"):
        fresh.install_programs()


def test_a_command_that_fails_is_named_with_its_last_words(made):
    with pytest.raises(made.Unavailable, match=r"^`sh -c .*` failed: two \| three \| four$"):
        made.run(["sh", "-c", "printf 'one\\n\\ntwo\\nthree\\nfour\\n'; exit 3"])
