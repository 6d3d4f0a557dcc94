from dataclasses import replace

import pytest

from laurel.preflight.doctor.space import RAY, Room, Space, judge, judge_checkpoints, look, memory, room

GIB, MIB = 2**30, 2**20
GOOD = Space(Room(64 * GIB, 60 * GIB), Room(32 * GIB, 32 * GIB), "/dev/shm", 8 * GIB, {RAY: Room(100 * GIB, 50 * GIB)})


def only(space: Space, **more):
    (found,) = judge({"a": space}, **more)
    assert found.where == "a"
    assert found.cure
    return found


def test_a_healthy_node_has_no_findings():
    assert judge({"a": GOOD, "b": GOOD}, parameters=10**9) == []


@pytest.mark.parametrize(
    ("space", "severity", "what"),
    [
        (replace(GOOD, shm=None), "error", "there is no /dev/shm"),
        (replace(GOOD, shm=Room(64 * MIB, 10 * MIB)), "error", "10 MiB of 64 MiB are free in /dev/shm"),
        (replace(GOOD, shm=Room(300 * MIB, 256 * MIB)), "warning", "may grow to 8.0 GiB there"),
        (replace(GOOD, store="/tmp"), "warning", "Ray keeps its objects in /tmp"),
    ],
)
def test_shared_memory(space, severity, what):
    found = only(space)
    assert (found.topic, found.severity) == ("/dev/shm", severity)
    assert what in found.what


def test_little_shared_memory_that_nothing_uses_is_a_warning():
    elsewhere = replace(GOOD, shm=Room(64 * MIB, 10 * MIB), store="/tmp")
    assert only(elsewhere).severity == "warning"
    assert only(replace(elsewhere, shm=None)).severity == "warning"
    found = only(elsewhere, nccl=["a"])
    assert found.severity == "error"
    assert "too little for NCCL: ranks would die of a bus error" in found.what


def test_a_small_store_needs_little_shared_memory():
    assert judge({"a": replace(GOOD, shm=Room(300 * MIB, 256 * MIB), store_bytes=100 * MIB)}) == []


def test_memory_must_hold_a_process_and_the_model():
    little = replace(GOOD, memory=Room(64 * GIB, 3 * GIB))
    assert judge({"a": little}, parameters=5 * 10**8) == []
    found = only(little, parameters=10**9)
    assert (found.topic, found.severity) == ("memory", "error")
    what = "3.0 GiB of 64.0 GiB of memory are free, and the model's weights alone take 3.7 GiB in fp32"
    assert found.what == what
    found = only(replace(GOOD, memory=Room(GIB, 500 * MIB)))
    assert found.severity == "warning"
    assert "a rank's process takes about 1.0 GiB" in found.what


def test_disks():
    assert only(replace(GOOD, disks={"the checkpoints": Room(GIB, 10 * MIB)})).severity == "error"
    found = only(replace(GOOD, disks={"the checkpoints": Room(GIB, 100 * MIB)}))
    assert (found.topic, found.severity) == ("disk", "warning")
    assert found.what == "the disk of the checkpoints has 100 MiB of 1.0 GiB free"
    found = only(replace(GOOD, disks={RAY: Room(100 * GIB, 3 * GIB)}))
    assert found.severity == "warning"
    assert "97% full; beyond 95% Ray writes no objects to it" in found.what


def test_two_checkpoints_must_fit_since_the_new_one_is_whole_before_the_old_one_goes():
    assert judge_checkpoints("/c", Room(100 * GIB, 25 * GIB), parameters=[10**9]) == []
    (close,) = judge_checkpoints("/c", Room(100 * GIB, 20 * GIB), parameters=[10**9])
    (none,) = judge_checkpoints("/c", Room(100 * GIB, 20 * GIB), parameters=[10**9, 10**9])
    assert (close.severity, none.severity) == ("warning", "error")
    assert none.what == "/c has 20.0 GiB free, and one checkpoint takes about 22.4 GiB"
    assert judge_checkpoints("/c", Room(GIB, 0), parameters=[]) == []


def test_a_folder_that_is_not_there_yet_counts_as_its_parent(tmp_path):
    assert room(tmp_path / "not" / "yet") == room(tmp_path)


def test_the_limit_of_a_control_group_counts(tmp_path):
    for name, text in {"max": "3000000\n", "current": "1000000\n", "stat": "anon 1\ninactive_file 400000\n"}.items():
        (tmp_path / f"memory.{name}").write_text(text)
    assert memory(tmp_path) == Room(3_000_000, 2_400_000)
    (tmp_path / "memory.max").write_text("max\n")
    assert memory(tmp_path).total > 2**30


def test_this_machine(tmp_path):
    space = look({"data": str(tmp_path)}, store="/dev/shm", store_bytes=1)
    assert space.disks["data"].total > 0
    assert space.memory.free > 0
