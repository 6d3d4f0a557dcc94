"""A run that is asked to end in any phase saves what is done, exits with a code of its own, and goes on bit for bit."""

import os
import signal
import subprocess
from pathlib import Path

import pytest

from e2e.runs import COMMAND, REPOSITORY, counts, differences, tensors
from laurel.learner.checkpoint import damage
from laurel.rewards.pool import ScoringPool
from laurel.trainer.saver import Saver
from laurel.workers.clients import ActorClient, CriticClient

SETTINGS = [
    "data.train_max_samples=50",
    "data.train_batch_size=16",
    "algorithm.adv_estimator=gae",
    "algorithm.use_kl_in_reward=True",
    "actor_rollout_ref.actor.ppo_mini_batch_size=8",
    "actor_rollout_ref.actor.optim.lr=1e-3",
    "critic.optim.lr=1e-3",
    "trainer.total_training_steps=4",
    "trainer.save_freq=2",
    "trainer.test_freq=2",
    "trainer.val_before_train=False",
]


@pytest.fixture(scope="module")
def straight(task, limits, shared_ray, tmp_path_factory):
    from e2e.runs import run_here

    run = run_here([*task.arguments(), *limits, *SETTINGS], tmp_path_factory.mktemp("straight") / "run")
    assert run.code == 0, run.text
    return run


# Phase: where the signal falls (class, method, which call of it), and the step that is saved. In sampling and
# validation the step in flight is given up; from the first log-probabilities on it is finished.
PHASES = {
    "reward": (ScoringPool, "score", 2 * 16 + 80 + 5, signal.SIGUSR1, 2),
    "log-probs": (ActorClient, "log_probs", 3, signal.SIGTERM, 3),
    "critic update": (CriticClient, "update", 3, signal.SIGINT, 3),
    "actor update": (ActorClient, "update", 1, signal.SIGUSR1, 1),
    "validation": (ScoringPool, "score", 2 * 16 + 7, signal.SIGTERM, 2),
    "save": (Saver, "save", 1, signal.SIGUSR1, 2),
}


# Each takes ten seconds: three of them in every run of the tests, the others where there is time.
QUICK = {"reward", "actor update", "save"}


@pytest.mark.parametrize(
    "phase", [pytest.param(phase, marks=[] if phase in QUICK else pytest.mark.slow) for phase in PHASES]
)
def test_a_signal_in_any_phase_saves_and_the_run_goes_on_bit_for_bit(phase, straight, train, monkeypatch):
    owner, method, call, number, step = PHASES[phase]
    original, calls = getattr(owner, method), []

    def with_signal(*arguments, **keywords):
        calls.append(1)
        if len(calls) == call:
            os.kill(os.getpid(), number)
        return original(*arguments, **keywords)

    handlers = [signal.getsignal(one) for one in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)]
    with monkeypatch.context() as patch:
        patch.setattr(owner, method, with_signal)
        cut = train(*SETTINGS)
    assert len(calls) >= call, "the signal fell in its phase"
    assert cut.code == 75, cut.text
    assert f"stopped early by {number.name} after step {step} of 4; all of it is saved" in cut.text
    assert (cut.folder / "LATEST").read_text() == f"global_step_{step}\n"
    assert [signal.getsignal(one) for one in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)] == handlers

    resumed = train(*SETTINGS)
    assert resumed.code == 0, resumed.text
    assert f"resumed at step {step} of 4" in resumed.text
    assert differences(tensors(straight.checkpoint(4)), tensors(resumed.checkpoint(4))) == []
    assert counts(straight.checkpoint(4)) == counts(resumed.checkpoint(4))
    assert resumed.numbers() == straight.numbers()


def test_a_second_ctrl_c_ends_at_once_and_saves_nothing(train, monkeypatch):
    original = ActorClient.update

    def twice(*arguments):
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        return original(*arguments)

    monkeypatch.setattr(ActorClient, "update", twice)
    run = train(*SETTINGS)
    assert run.code == 130
    assert list(run.folder.glob("global_step_*")) == []


def test_the_wall_clock_ends_a_run_as_a_signal_does(train):
    run = train(*SETTINGS, "trainer.max_walltime=8", "trainer.total_training_steps=100000", "trainer.save_freq=-1")
    assert run.code == 75, run.text
    assert "stopped early by trainer.max_walltime after step" in run.text
    assert len(list(run.folder.glob("global_step_*"))) == 1


@pytest.mark.parametrize(
    "number", [signal.SIGUSR1, pytest.param(signal.SIGINT, marks=pytest.mark.slow)], ids=lambda number: number.name
)
def test_a_signal_to_every_process_of_the_job_still_saves(number, task, limits, tmp_path):
    """As a scheduler or Ctrl-C in a terminal sends it: Ray and the ranks get it, too."""
    words = [*task.arguments(), *limits, *SETTINGS, "trainer.total_training_steps=100000", "trainer.test_freq=-1"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    command = subprocess.Popen(
        [*COMMAND, *words, f"trainer.default_local_dir={tmp_path / 'run'}"],
        env=environment | {"PYTHONPATH": str(REPOSITORY)},
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    assert command.stdout is not None
    text = ""
    for line in command.stdout:
        text += line
        if " step 3  score" in line:
            for pid in of_session(command.pid):
                os.kill(pid, number)
    assert command.wait(60) == 75, text
    assert f"stopped early by {number.name} after step" in text
    saved = (tmp_path / "run" / "LATEST").read_text().strip()
    assert damage(tmp_path / "run" / saved) is None


def of_session(leader: int) -> list[int]:
    """The processes of a session: field 6 of /proc/PID/stat."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:  # it ended while we looked
            continue
        if int(fields[3]) == leader:
            found.append(int(folder.name))
    return found
