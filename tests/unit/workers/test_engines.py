import torch

from laurel.workers import engines
from laurel.workers.engines import available_memory, cache_memory, slots_for

MIB = 1 << 20


def test_slots_are_this_ranks_part_of_the_batch_within_memory():
    assert slots_for(trajectories=100, slot_bytes=MIB, memory=1000 * MIB, device="cpu") == 100
    assert slots_for(trajectories=256, slot_bytes=MIB, memory=100 * MIB, device="cpu") == 100
    assert slots_for(trajectories=4, slot_bytes=MIB, memory=1000 * MIB, device="cpu") == 64, "validation may have more"
    assert slots_for(trajectories=5000, slot_bytes=MIB, memory=1 << 40, device="cpu") == 256
    assert slots_for(trajectories=5000, slot_bytes=MIB, memory=1 << 40, device="cuda") == 1024
    assert slots_for(trajectories=8, slot_bytes=MIB, memory=0, device="cuda") == 1


def test_ranks_of_a_machine_share_its_free_memory(monkeypatch):
    monkeypatch.setattr(engines, "available_memory", lambda: 8000)
    assert cache_memory(torch.device("cpu"), share=0.9, ranks_here=2) == 1000


def test_available_memory_counts_caches_that_can_be_dropped(tmp_path, monkeypatch):
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal:       100 kB\nMemFree:          10 kB\nMemAvailable:     60 kB\n")
    assert available_memory(meminfo) == 60 * 1024
    monkeypatch.setattr("os.sysconf", {"SC_PHYS_PAGES": 1000, "SC_PAGE_SIZE": 4096}.__getitem__)
    assert available_memory(tmp_path / "absent") == 500 * 4096


def test_a_gpu_cache_takes_what_is_left_of_its_share(monkeypatch):
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda device: (80_000, 100_000))
    monkeypatch.setattr("torch.cuda.memory_allocated", lambda device: 10_000)
    assert cache_memory(torch.device("cuda"), share=0.5, ranks_here=8) == 40_000
    assert cache_memory(torch.device("cuda"), share=0.95, ranks_here=8) == 72_000, "nine tenths of what is free"
