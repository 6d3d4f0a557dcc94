"""Saving beside the training: order, retries, and what a rehearsal refuses. A role writes a small file, or fails."""

import threading

import pytest

from laurel.config.load import load
from laurel.learner.checkpoint import newest_checkpoint
from laurel.learner.disk import SaveError, write_chunks
from laurel.trainer.roles import NoCritic, Roles
from laurel.trainer.run_state import RunState
from laurel.trainer.saver import Saver
from laurel.workers.saving import Rehearsal, probe_name


class Actor:
    """``errors`` are what the next saves end with, one after the other; writing waits for ``gate``."""

    def __init__(self):
        self.errors, self.gate, self.copied = [], threading.Event(), []
        self.gate.set()
        self.rank, self.probes = Rehearsal(0, "here", bytes=10, memory=1000), True

    def rehearse(self, folder):
        if self.probes:
            (folder / probe_name(0)).touch()
        return [self.rank]

    def save(self, folder, *, copied):
        self.copied.append(copied)
        self.folder, self.error = folder, self.errors.pop(0) if self.errors else None
        return self

    def files(self, say):
        self.gate.wait(20)
        if self.error is not None:
            raise self.error
        self.folder.mkdir()
        return {"shard": write_chunks(self.folder / "shard", [b"weights"])}


@pytest.fixture
def saver(tmp_path):
    said = []
    made = Saver(
        tmp_path / "run",
        load(["trainer.device=cpu"]).config,
        Roles(Actor(), None, NoCritic(), None, None),
        said.append,
    )
    made.said = said
    return made


def test_training_goes_on_while_a_checkpoint_is_written_and_the_next_save_waits_for_it(saver):
    actor = saver.roles.actor
    actor.gate.clear()
    saver.save(RunState(step=1))
    assert newest_checkpoint(saver.root).folder is None, "it is being written"
    threading.Timer(0.3, actor.gate.set).start()
    saver.save(RunState(step=2))
    assert (saver.root / "global_step_1" / "manifest.json").is_file()
    saver.finish()
    assert newest_checkpoint(saver.root).folder == saver.root / "global_step_2"
    assert saver.said == [f"saved {saver.root}/global_step_{step}" for step in (1, 2)]


def test_a_disk_that_refuses_is_said_tried_again_and_in_the_end_raised(saver):
    actor = saver.roles.actor
    actor.errors = [SaveError("full")]
    saver.save(RunState(step=1))
    saver.finish()
    assert saver.again
    assert saver.said == ["SAVE FAILED (1 of 3 times): full. It is tried again after a step"]
    assert list(saver.root.glob("*")) == [], "what was begun gave its room back"
    saver.save(RunState(step=2))
    saver.finish()
    assert not saver.again
    actor.errors = [SaveError("full")] * 3
    with pytest.raises(SaveError, match="full"):
        saver.complete(RunState(step=3))
    assert newest_checkpoint(saver.root).folder == saver.root / "global_step_2"


def test_what_is_no_matter_of_the_disk_is_raised_at_once(saver):
    saver.roles.actor.errors = [ValueError("a bug")]
    saver.save(RunState(step=1))
    with pytest.raises(ValueError, match="a bug"):
        saver.finish()


def test_complete_saves_what_is_not_saved_and_nothing_twice(saver):
    saver.save(RunState(step=1))
    saver.complete(RunState(step=1))
    saver.complete(RunState(step=2))
    assert len(saver.roles.actor.copied) == 2


def test_a_deletion_that_fails_ends_nothing(saver, monkeypatch):
    def refuse(root, keep):
        raise SaveError("busy")

    monkeypatch.setattr("laurel.trainer.saver.prune", refuse)
    saver.complete(RunState(step=1))
    assert saver.said[-1] == "old checkpoints could not be deleted: busy"


def test_the_rehearsal_refuses_a_folder_that_is_another_one_on_a_node(saver):
    saver.rehearse()
    assert list(saver.root.glob("*")) == []
    saver.roles.actor.probes = False
    with pytest.raises(SaveError, match="not the same folder on here, where rank 0 writes"):
        saver.rehearse()


def test_the_rehearsal_looks_at_space_and_memory(saver):
    saver.roles.actor.rank = Rehearsal(0, "here", bytes=600, memory=1000)
    saver.rehearse()
    assert not saver.copied, "copies would take more than half of the free memory"
    saver.save(RunState(step=1))
    assert newest_checkpoint(saver.root).folder is not None, "so training waited"
    assert saver.roles.actor.copied == [False]
    saver.roles.actor.rank = Rehearsal(0, "here", bytes=2**60, memory=2**62)
    with pytest.raises(SaveError, match=r"GiB free, and a checkpoint takes 1073741824.00 GiB"):
        saver.rehearse()
