"""GPUs that a process would see."""

import pytest

from laurel.config import machine


@pytest.fixture
def devices(tmp_path):
    for name in ("nvidia0", "nvidia1", "nvidia2", "nvidiactl", "nvidia-uvm", "nvidia0x"):
        (tmp_path / name).touch()
    return tmp_path


@pytest.mark.parametrize(
    ("visible", "count"),
    [(None, 3), ("", 0), ("-1", 0), ("0,2", 2), ("1", 1), ("0,-1,2", 1), ("0,7,1", 1), ("GPU-abc,GPU-def", 2)],
)
def test_cut_by_cuda_visible_devices(devices, visible, count):
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert machine.visible_gpus(environ, devices) == count


def test_a_machine_without_gpus_has_none_whatever_is_visible(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert machine.visible_gpus({"CUDA_VISIBLE_DEVICES": "0,1"}, tmp_path) == 0


def test_the_drivers_tool_is_asked_where_devices_have_no_file(tmp_path, monkeypatch):
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 'GPU 0: A (UUID: x)'\necho 'GPU 1: A (UUID: y)'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert machine.visible_gpus({}, tmp_path) == 2


def test_available_memory_counts_caches_that_can_be_dropped(tmp_path, monkeypatch):
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal:       100 kB\nMemFree:          10 kB\nMemAvailable:     60 kB\n")
    assert machine.available_memory(meminfo) == 60 * 1024
    monkeypatch.setattr("os.sysconf", {"SC_PHYS_PAGES": 1000, "SC_PAGE_SIZE": 4096}.__getitem__)
    assert machine.available_memory(tmp_path / "absent") == 500 * 4096


def test_the_smallest_gpu_counts(tmp_path, monkeypatch):
    tool = tmp_path / "nvidia-smi"
    monkeypatch.setenv("PATH", str(tmp_path))
    assert machine.gpu_memory({}) is None
    tool.write_text('#!/bin/sh\nif [ "$3" = --id=1 ]; then echo 24576; else printf "143771\\n81559\\n"; fi\n')
    tool.chmod(0o755)
    assert machine.gpu_memory({}) == 81559 * 2**20
    assert machine.gpu_memory({"CUDA_VISIBLE_DEVICES": "1"}) == 24576 * 2**20
    assert machine.gpu_memory({"CUDA_VISIBLE_DEVICES": ""}) is None
    tool.write_text("#!/bin/sh\necho No devices were found\n")
    assert machine.gpu_memory({}) is None
