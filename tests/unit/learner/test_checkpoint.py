import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from laurel.learner.checkpoint import (
    begin_checkpoint,
    commit_checkpoint,
    damage,
    newest_checkpoint,
    prune,
    step_of,
)
from laurel.types import LaurelError

REPOSITORY = Path(__file__).resolve().parents[3]


def write(root, step, text="weights", contents=None):
    folder = begin_checkpoint(root, step)
    (folder / "actor").mkdir()
    (folder / "actor" / "shard").write_text(f"{text} of {step}")
    return commit_checkpoint(folder, contents)


def test_a_checkpoint_is_whole_after_one_rename(tmp_path):
    folder = begin_checkpoint(tmp_path, 8)
    assert folder.name == "global_step_8.incomplete"
    assert newest_checkpoint(tmp_path).folder is None
    (folder / "state.json").write_text("{}")
    final = commit_checkpoint(folder, {"policy_version": 8})
    assert final == tmp_path / "global_step_8"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["LATEST", "global_step_8"]
    assert (tmp_path / "LATEST").read_text() == "global_step_8\n"
    manifest = json.loads((final / "manifest.json").read_text())
    assert manifest == {
        "format_version": 1,
        "step": 8,
        "policy_version": 8,
        "files": {
            "state.json": {
                "bytes": 2,
                "sha256": "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a",
            }
        },
    }
    assert newest_checkpoint(tmp_path) == (final, (), ())


def test_the_newest_counts_steps_as_numbers(tmp_path):
    for step in (9, 10):
        write(tmp_path, step)
    (tmp_path / "global_step_x").mkdir()
    (tmp_path / "notes.txt").write_text("mine")
    assert newest_checkpoint(tmp_path).folder == tmp_path / "global_step_10"
    assert newest_checkpoint(tmp_path / "nowhere") == (None, (), ())


def test_unfinished_and_damaged_ones_are_passed_over_and_said_so(tmp_path):
    for step in (1, 2, 3, 4, 5):
        write(tmp_path, step)
    begin_checkpoint(tmp_path, 6)
    (tmp_path / "global_step_5" / "manifest.json").unlink()
    (tmp_path / "global_step_4" / "actor" / "shard").unlink()
    shard = tmp_path / "global_step_3" / "actor" / "shard"
    shard.write_text("weights of")  # truncated
    flipped = tmp_path / "global_step_2" / "actor" / "shard"
    flipped.write_text("weightS of 2")  # one bit
    found = newest_checkpoint(tmp_path)
    assert found.folder == tmp_path / "global_step_1"
    whys = [note.removeprefix(f"passed over {tmp_path}/") for note in found.notes]
    assert whys[0] == "global_step_6.incomplete: it was never finished"
    assert whys[1].startswith("global_step_5: its manifest.json cannot be read")
    assert whys[2] == "global_step_4: actor/shard is missing"
    assert whys[3] == "global_step_3: actor/shard has 10 bytes instead of 12"
    assert whys[4] == "global_step_2: actor/shard does not match its checksum"


def test_a_newer_format_is_not_guessed_at(tmp_path):
    final = write(tmp_path, 1)
    manifest = json.loads((final / "manifest.json").read_text())
    (final / "manifest.json").write_text(json.dumps({**manifest, "format_version": 2}))
    assert damage(final) == "its format_version 2 is newer than 1, which this Laurel reads"


def test_a_step_saved_again_replaces_the_old_one(tmp_path):
    write(tmp_path, 3, "old")
    begin_checkpoint(tmp_path, 3).joinpath("left").write_text("by a killed process")
    final = write(tmp_path, 3, "new")
    assert (final / "actor" / "shard").read_text() == "new of 3"
    assert not (final / "left").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["LATEST", "global_step_3"]


def test_a_replacement_that_died_half_way_is_undone(tmp_path):
    final = write(tmp_path, 3, "old")
    begin_checkpoint(tmp_path, 3)
    final.rename(tmp_path / "global_step_3.replaced")
    found = newest_checkpoint(tmp_path)
    assert found.folder == final
    assert (final / "actor" / "shard").read_text() == "old of 3"


def test_prune_keeps_the_newest_whole_ones(tmp_path):
    for step in (1, 2, 3, 4):
        write(tmp_path, step)
    (tmp_path / "global_step_4" / "manifest.json").unlink()  # not whole: does not count
    begin_checkpoint(tmp_path, 1)
    assert prune(tmp_path, None) == []
    assert [path.name for path in prune(tmp_path, 2)] == ["global_step_1", "global_step_1.incomplete"]
    assert [path.name for path in prune(tmp_path, 1)] == ["global_step_2"]
    assert prune(tmp_path, 1) == []
    assert newest_checkpoint(tmp_path).folder == tmp_path / "global_step_3"
    with pytest.raises(ValueError, match="keep=0"):
        prune(tmp_path, 0)


def test_step_of():
    assert step_of(Path("/a/global_step_12")) == step_of(Path("/a/global_step_12.incomplete")) == 12
    with pytest.raises(LaurelError, match="no checkpoint folder"):
        step_of(Path("/a/step_12"))


SAVER = """
import sys
import time
from pathlib import Path
from laurel.learner.checkpoint import begin_checkpoint, commit_checkpoint
root = Path(sys.argv[1])
for step in range(1, 10**6):
    folder = begin_checkpoint(root, 1)
    for name in range(4):
        (folder / str(name)).write_bytes(bytes([step % 251]) * 50_000)
    commit_checkpoint(folder, {"pass": step})
    print(step, flush=True)
"""


def kill_while_saving(folder: Path, moments: list[float]) -> None:
    """A process that saves the same step again and again, killed so many seconds after some pass began, each time."""
    environment = dict(os.environ, PYTHONPATH=str(REPOSITORY))
    for attempt, moment in enumerate(moments):
        saver = subprocess.Popen(
            [sys.executable, "-c", SAVER, str(folder)], env=environment, stdout=subprocess.PIPE, text=True
        )
        for _ in range(4 + attempt % 5):
            assert saver.stdout is not None
            assert saver.stdout.readline()
        time.sleep(moment)
        saver.send_signal(signal.SIGKILL)
        saver.wait(20)
        saver.stdout.close()
        found = newest_checkpoint(folder)
        assert found.folder is not None, found.notes
        content = {path.read_bytes() for path in found.folder.iterdir() if path.name != "manifest.json"}
        assert len(content) == 1  # all four files are of one pass


def test_a_kill_at_any_moment_leaves_a_whole_checkpoint(tmp_path):
    kill_while_saving(tmp_path, [0.0015 * attempt for attempt in range(8)])


@pytest.mark.slow
def test_a_kill_at_fifty_random_moments_leaves_a_whole_checkpoint(tmp_path):
    moments = random.Random(7)
    kill_while_saving(tmp_path, [moments.uniform(0, 0.02) for _ in range(50)])


SMALL_DISK = """
import sys
from pathlib import Path
from laurel.learner.checkpoint import begin_checkpoint, commit_checkpoint, damage, discard_checkpoint, newest_checkpoint
from laurel.learner.disk import SaveError, free_bytes, write_chunks, writing

def save(step, size):
    folder = begin_checkpoint(root, step)
    try:
        with writing(folder):
            entry = write_chunks(folder / "shard", [bytes(size)])
        commit_checkpoint(folder, written={"shard": entry})
    except SaveError as error:
        discard_checkpoint(folder)
        print(error)

root = Path(sys.argv[1])
save(1, 100_000)
free = free_bytes(root)
save(2, 4_000_000)
assert free_bytes(root) == free, "what could not be finished takes no room"
assert newest_checkpoint(root).folder == root / "global_step_1"
save(3, 100_000)
assert newest_checkpoint(root).folder == root / "global_step_3"
assert damage(root / "global_step_1") is None
"""
READ_ONLY = (
    SMALL_DISK.partition("root = ")[0]
    + """
root = Path(sys.argv[1])
try:
    save(4, 10)
except SaveError as error:
    print(error)
assert newest_checkpoint(root).folder == root / "global_step_3"
"""
)


def test_a_full_and_a_read_only_disk_are_said_and_leave_what_was_saved(tmp_path):
    """A disk of 1 MB, which a namespace of its own lets every user mount."""
    script = f"""
    set -e
    mount -t tmpfs -o size=1m none {tmp_path}
    {sys.executable} -c "$FULL" {tmp_path}
    mount -o remount,ro {tmp_path}
    {sys.executable} -c "$READ_ONLY" {tmp_path}
    """
    unshare = ["unshare", "--mount", "--map-root-user"]
    if shutil.which("unshare") is None or subprocess.run([*unshare, "true"], check=False).returncode:
        pytest.skip("no mount namespaces here")
    environment = dict(os.environ, PYTHONPATH=str(REPOSITORY), FULL=SMALL_DISK, READ_ONLY=READ_ONLY)
    done = subprocess.run([*unshare, "sh", "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    full, read_only = done.stdout.splitlines()
    assert "global_step_2.incomplete cannot be written: [Errno 28] No space left on device" in full
    assert "trainer.max_actor_ckpt_to_keep" in full
    assert "Read-only file system" in read_only
    assert "make it writable" in read_only
