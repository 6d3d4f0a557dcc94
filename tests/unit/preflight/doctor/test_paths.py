from pathlib import Path

import pytest

from laurel.preflight.doctor import paths
from laurel.preflight.doctor.paths import MISSING, OFFLINE, Content, Named, Planted, judge, judge_shared, look

MODEL, DATA = Named("model", "m.path", "/m", True), Named("data", "data.train_files", "/d", False)
HUB = Named("model", "m.path", "owner/name", True)
HERE, OTHER = Content(10, "aa"), Content(12, "bb")


def test_a_copy_is_the_same_and_a_changed_file_is_not(tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    for folder in (one, two):
        (folder / "below").mkdir(parents=True)
        (folder / "config.json").write_text("{}")
        (folder / "model.safetensors").write_bytes(bytes(3 << 20))
    assert look(str(one)) == look(str(two))
    assert look(str(one)).size == (3 << 20) + 2
    (two / ".cache").write_text("of a download")
    assert look(str(one)) == look(str(two)), "hidden files do not count"
    with (two / "model.safetensors").open("r+b") as stream:
        stream.seek(-1, 2)
        stream.write(b"x")
    assert look(str(one)).digest != look(str(two)).digest
    assert look(str(one / "config.json")).size == 2


def test_what_is_not_there(tmp_path, monkeypatch):
    assert look(str(tmp_path / "none")) == Content(problem=MISSING)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    monkeypatch.setattr(paths, "hub_answers", lambda: False)
    assert look("owner/name") == Content(problem=OFFLINE)
    monkeypatch.setattr(paths, "hub_answers", lambda: True)
    assert look("owner/name") == Content(problem=MISSING)


@pytest.mark.parametrize(
    ("named", "content", "severity", "what", "cure"),
    [
        (MODEL, Content(problem=MISSING), "error", "m.path=/m is not there", "copy it there"),
        (MODEL, Content(problem="permission denied"), "error", "cannot be read: permission denied", "copy it there"),
        (MODEL, OTHER, "error", "m.path=/m is another one there (12 bytes; here 10)", "copy it anew"),
        (DATA, Content(problem=MISSING), "note", "data.train_files=/d is not there", "only the process that drives"),
        (DATA, OTHER, "note", "is another one there", "copy it anew"),
        (HUB, Content(problem=MISSING), "note", "m.path=owner/name is not in its cache yet", "fetched there when"),
        (HUB, Content(problem=OFFLINE), "error", "nor on a hub that it reaches", "HF_HOME"),
        (HUB, OTHER, "error", "is another one there", "another revision"),
    ],
)
def test_what_another_node_reads(named, content, severity, what, cure):
    (found,) = judge(named, {"a": HERE, "b": content})
    assert (found.topic, found.severity, found.where) == (named.topic, severity, "b")
    assert what in found.what
    assert cure in found.cure


def test_the_same_everywhere_and_what_the_settings_check_names():
    assert judge(MODEL, {"a": HERE, "b": HERE}) == []
    assert judge(MODEL, {"a": Content(problem=MISSING), "b": Content(problem=MISSING)}) == []


def test_a_shared_folder(tmp_path):
    folder = str(tmp_path / "new" / "run")
    planted = paths.plant(folder, "t0")
    assert planted == Planted(made=(folder, str(tmp_path / "new")))
    assert paths.seek(folder, "t0", "1") == ""
    assert [file.name for file in Path(folder).iterdir()] == [".laurel-probe-t0"]
    paths.uproot(folder, "t0", planted.made)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_was_there_stays_with_what_it_holds(tmp_path):
    (tmp_path / "global_step_1").mkdir()
    planted = paths.plant(str(tmp_path), "t0")
    assert planted == Planted()
    paths.uproot(str(tmp_path), "t0", planted.made)
    assert [file.name for file in tmp_path.iterdir()] == ["global_step_1"]


def test_another_folder_of_the_same_name_does_not_have_the_file(tmp_path):
    assert paths.seek(str(tmp_path), "t0", "1", within_s=0.1) == MISSING
    (tmp_path / ".laurel-probe-t0").write_text("of somebody else")
    assert paths.seek(str(tmp_path), "t0", "1", within_s=0.1) == MISSING


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").touch()
    assert paths.plant(str(tmp_path / "file" / "run"), "t0").problem == "not a directory"
    assert (tmp_path / "file").exists()


def test_what_nodes_saw_of_the_folder():
    def found(seen="", *, planted=None, together=True):
        return judge_shared("dir", "/c", ("a", planted or Planted()), {"b": seen}, together=together)

    assert found() == []
    (apart,) = found(MISSING)
    assert (apart.severity, apart.where) == ("error", "b")
    assert apart.what == "dir=/c is not the folder that a writes to: a file left there does not appear"
    assert "set dir to a folder on a disk that all nodes share" in apart.cure
    assert found(MISSING, together=False)[0].severity == "warning"
    (read_only,) = found("cannot be written: read-only file system")
    assert read_only.what == "dir=/c cannot be written: read-only file system"
    (mine,) = found(planted=Planted("permission denied"))
    assert (mine.severity, mine.where, mine.what) == ("error", "a", "dir=/c cannot be written: permission denied")
