import os

from laurel.workers.raylets import (
    NodeOptions,
    Raylet,
    hand_started_cluster,
    node_options,
    running_raylets,
    short_temp_dir,
)


def process(proc, pid, command, environment=""):
    folder = proc / str(pid)
    folder.mkdir()
    (folder / "cmdline").write_bytes(b"\0".join(part.encode() for part in command))
    (folder / "environ").write_bytes(environment.replace(" ", "\0").encode())


def test_raylets_are_read_from_proc_with_their_authentication(tmp_path):
    process(tmp_path, 10, ["/usr/bin/python", "train.py", "--gcs-address=10.0.0.9:1"])
    process(
        tmp_path,
        11,
        ["/site/ray/raylet", "--node_id=1", "--gcs-address=10.0.0.1:6379"],
        "HOME=/root RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH=/run/token",
    )
    (tmp_path / "self").mkdir()
    (tmp_path / "12").mkdir()  # ended while we looked
    assert running_raylets(tmp_path) == [
        Raylet("10.0.0.1:6379", os.getuid(), {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": "/run/token"})
    ]


def test_no_proc_no_raylets(tmp_path):
    assert running_raylets(tmp_path / "absent") == []


def test_how_the_raylet_of_a_node_was_started(tmp_path):
    flags = ["--temp_dir=/t/ray", "--plasma_directory=/dev/shm", "--object_store_memory=80"]
    process(tmp_path, 1, ["/ray/raylet", "--node_id=aa", *flags], "A=1 CUDA_VISIBLE_DEVICES=2,3")
    process(tmp_path, 2, ["/ray/raylet", "--node_id=bb", "--temp_dir=/other"], "A=1")
    assert node_options("aa", tmp_path) == NodeOptions("/t/ray", "/dev/shm", 80, "2,3")
    assert node_options("bb", tmp_path) == NodeOptions("/other")
    assert node_options("cc", tmp_path) == NodeOptions()


def test_only_a_living_cluster_of_this_user_that_was_started_by_hand_is_found(tmp_path, monkeypatch):
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    mine, other = Raylet("10.0.0.1:6379", 1000), Raylet("10.0.0.1:6380", 1001)
    assert hand_started_cluster([mine], 1000) is None, "nothing was recorded"
    (tmp_path / "ray").mkdir()
    recorded = tmp_path / "ray" / "ray_current_cluster"
    recorded.write_text("10.0.0.1:6379\n")
    assert hand_started_cluster([other, mine], 1000) is mine
    assert hand_started_cluster([mine], 1001) is None, "another user's"
    assert hand_started_cluster([other], 1000) is None, "recorded, but it died"


def test_a_long_temporary_folder_is_avoided(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path / ("x" * 60)))
    folder = short_temp_dir()
    try:
        assert str(folder).startswith("/tmp/laurel-")
        assert folder.stat().st_mode & 0o777 == 0o700
        longest = folder / "r/session_2026-12-01_03-52-22_092230_4194304/sockets/plasma_store.1"
        assert len(os.fsencode(longest)) <= 107
    finally:
        folder.rmdir()
