"""Records of jobs, and what would be sent to Ray."""

import pytest

from laurel.launch import records, upload
from laurel.launch.records import Record
from laurel.types import LaurelError


def record(name, started="2026-01-01T00:00:00+00:00"):
    return Record(name, "slurm", "17", started, "/work", {"log": "/work/a.log"})


def test_a_record_comes_back_and_the_latest_is_first(tmp_path):
    records.write(record("one"), tmp_path)
    records.write(record("two", "2026-01-02T00:00:00+00:00"), tmp_path)
    assert records.read("one", tmp_path) == record("one")
    assert [found.name for found in records.every(tmp_path)] == ["two", "one"]


def test_an_unknown_name_lists_the_known_ones_and_a_broken_record_its_file(tmp_path):
    file = records.write(record("one"), tmp_path)
    with pytest.raises(LaurelError, match=r"no job other was launched from here; known: one"):
        records.read("other", tmp_path)
    file.write_text("{}")
    with pytest.raises(LaurelError, match=r"one\.json is no record of a job .*delete it"):
        records.read("one", tmp_path)


def test_what_would_be_sent_follows_rays_own_rules(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, size in (("code.py", 10), ("kept/model.bin", 3000), ("data.parquet", 5000), ("ignored/x", 7000)):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"0" * size)
    (tmp_path / ".gitignore").write_text("ignored/\n")
    settings = tmp_path / "env.yaml"
    settings.write_text('working_dir: .\nexcludes: ["*.parquet", "env.yaml", ".gitignore"]\n')
    assert upload.check_upload(settings) == 3010
    monkeypatch.setattr(upload.packaging, "GCS_STORAGE_MAX_SIZE", 3000)
    with pytest.raises(LaurelError, match=r"the largest: kept/model\.bin .*code\.py .*excludes in"):
        upload.check_upload(settings)


def test_a_folder_that_is_not_there_and_one_that_is_fetched_elsewhere(tmp_path):
    settings = tmp_path / "env.yaml"
    settings.write_text("working_dir: ./nowhere\n")
    with pytest.raises(LaurelError, match="nowhere is no folder"):
        upload.check_upload(settings)
    settings.write_text("working_dir: s3://bucket/code.zip\n")
    assert upload.check_upload(settings) == 0
