"""Effects of trainer.* on placement, seeds, steps and their cadence, and of ray_kwargs.*."""

import contextlib
from types import SimpleNamespace

import pytest
from unit.effects.cases import PPO, batch_of, noise, run_of
from unit.effects.registry import effect

from laurel.tracking.timer import Timer
from laurel.trainer import train
from laurel.trainer.build import prepare
from laurel.types import LaurelError
from laurel.workers import group as groups
from laurel.workers import session
from laurel.workers.clients import ActorClient
from laurel.workers.fit import Fit
from laurel.workers.group import WorkerGroup
from laurel.workers.host import Updates

NEW = "trainer.resume_mode=disable"


class Stop(LaurelError):
    """Ends a start where the effect has been seen."""


@pytest.fixture
def reserved(monkeypatch):
    """What a WorkerGroup of ``config`` asks the cluster for: Wanted, and the deadline in seconds."""

    def reserve(wanted, *, timeout_s, alone, say):
        raise Stop(wanted, timeout_s)

    monkeypatch.setattr(groups, "reserve", reserve)

    def ask(config):
        with pytest.raises(Stop) as asked:
            WorkerGroup.spawn(config, Updates(1, 1), alone=True)
        return asked.value.args

    return ask


@effect("trainer.device")
def test_device_decides_what_a_rank_runs_on(key, settings, reserved):
    for device, bundle in (("cpu", {"CPU": 1.0}), ("cuda", {"CPU": 1.0, "GPU": 2.0})):
        wanted, _ = reserved(settings(f"{key}={device}", "trainer.n_gpus_per_node=2"))
        assert (wanted.device, wanted.bundle) == (device, bundle)


@effect("trainer.n_gpus_per_node")
def test_n_gpus_per_node_is_ranks_on_each_node(key, settings, reserved):
    assert [reserved(settings(f"{key}={n}"))[0].ranks for n in (1, 3)] == [1, 3]
    gpus, _ = reserved(settings(f"{key}=3", "trainer.device=cuda"))
    assert gpus.bundle["GPU"] == 3.0


@effect("trainer.nnodes")
def test_nnodes_is_nodes_of_the_cluster(key, settings, reserved):
    assert [reserved(settings(f"{key}={n}"))[0].nodes for n in (1, 2)] == [1, 2]


@effect("trainer.placement_timeout")
def test_placement_timeout_is_the_deadline_for_nodes(key, settings, reserved):
    assert [reserved(settings(*given))[1] for given in ((), (f"{key}=5",))] == [600, 5]


@effect("ray_kwargs.ray_init")
def test_ray_init_reaches_ray(key, settings, monkeypatch):
    started = []
    ray = SimpleNamespace(
        is_initialized=lambda: bool(started),
        init=lambda **given: started.append(given),
        shutdown=lambda: None,
        get_runtime_context=lambda: SimpleNamespace(gcs_address="here"),
        __version__="of a test",
    )
    monkeypatch.setattr(session, "ray", ray)
    monkeypatch.setattr(session, "refresh_authentication", lambda: None)
    monkeypatch.setenv("RAY_ADDRESS", "local")
    monkeypatch.setattr(
        WorkerGroup,
        "spawn",
        lambda config, *_, **__: contextlib.nullcontext(SimpleNamespace(world=0, handles=(), fit=Fit(config))),
    )
    given = {}
    for cpus in (3, 5):
        started.clear()
        with contextlib.suppress(LaurelError):  # a group without ranks gives no engines
            train.execute(settings(f"{key}.num_cpus={cpus}", f"{key}.namespace=mine"))
        (given[cpus],) = started
    assert {cpus: (one["num_cpus"], one["namespace"]) for cpus, one in given.items()} == {
        3: (3, "mine"),
        5: (5, "mine"),
    }


@effect("trainer.seed")
def test_seed_decides_every_sample(key, settings):
    def seeds(seed):
        run, pool = run_of(settings("actor_rollout_ref.rollout.n=2", f"{key}={seed}", "data.shuffle=False"))
        run.roles.rollouts.collect(run.next_prompts, step=1)
        return [request.seed for request in pool.requests]

    assert seeds(1) == seeds(1)
    assert not set(seeds(1)) & set(seeds(2))


@effect("trainer.seed")
def test_seed_decides_the_shuffling_of_mini_batches(key, settings, ranks):
    mini = ("actor_rollout_ref.actor.shuffle=True", "actor_rollout_ref.actor.ppo_mini_batch_size=1")

    def orders(seed):
        config, found = settings(*mini, f"{key}={seed}", "data.train_batch_size=8"), []
        for step in range(3):
            ActorClient(ranks, config, timer=Timer(), step=lambda step=step: step).update(batch_of([3] * 8))
            found.append([int(mini.micro_batches[0].group[0]) for mini in ranks.sent[-1][1][0]])
        return found

    assert orders(1) == orders(1) != orders(2)


# --- steps and their cadence ----------------------------------------------------------------------------------------


def due(cadence, steps=6):
    return [step for step in range(1, steps + 1) if cadence.due(step)]


@effect("trainer.total_epochs")
def test_total_epochs_is_passes_over_the_rows(key, settings):
    for epochs, steps in ((1, 2), (2, 5)):  # 10 rows, batches of 4; a batch may span two epochs
        assert prepare(settings(f"{key}={epochs}")).total_steps == steps


@effect("trainer.total_training_steps")
def test_total_training_steps_is_the_number_of_steps(key, settings, monkeypatch):
    monkeypatch.setattr(train, "train_step", lambda run: steps.append(run.state.step))
    for given, made in (((), 2), ((f"{key}=3",), 3)):
        steps = []
        run, _ = run_of(settings(NEW, *given))
        train.train(run)
        assert steps == list(range(1, made + 1))
        assert prepare(settings(*given)).updates.actor == made


@effect("trainer.critic_warmup")
def test_critic_warmup_leaves_the_actor_alone_at_first(key, settings, ranks):
    for warmup, updated in ((0, [1, 2, 3]), (2, [3])):
        run, _ = run_of(settings(*PPO, "trainer.total_training_steps=3", f"{key}={warmup}"), ranks)
        batch = batch_of((4, 5), values=noise(9), returns=noise(9), advantages=noise(9))
        found = {"update_actor": [], "update_critic": []}
        for step in (1, 2, 3):
            run.state.step = step
            ranks.sent.clear()
            run.roles.actor.update(batch)
            run.roles.critic.update(batch)
            for method in ranks.methods():
                found[method].append(step)
        assert found == {"update_actor": updated, "update_critic": [1, 2, 3]}


@effect("trainer.save_freq", "trainer.test_freq")
def test_frequencies_are_steps_between(key, settings):
    name = {"trainer.save_freq": "saving", "trainer.test_freq": "validation"}[key]
    for every, steps in ((-1, [6]), (2, [2, 4, 6]), (4, [4, 6])):
        run, _ = run_of(settings(f"{key}={every}", "trainer.total_training_steps=6"))
        assert due(getattr(run, name)) == steps


@effect("trainer.val_before_train")
def test_val_before_train_answers_every_row_first(key, settings, monkeypatch):
    monkeypatch.setattr(train, "train_step", lambda run: None)
    for value, steps in ((True, [0, 2]), (False, [2])):
        run, pool = run_of(settings(NEW, f"{key}={value}"))
        train.train(run)
        assert [step for step, _, _ in run.report.validations] == steps
        assert len(pool.requests) == 3 * len(steps)


@effect("trainer.val_only")
def test_val_only_validates_and_stops(key, settings, monkeypatch):
    monkeypatch.setattr(train, "RaySession", lambda *_, **__: contextlib.nullcontext(SimpleNamespace(started=True)))
    monkeypatch.setattr(
        WorkerGroup, "spawn", lambda config, *_, **__: contextlib.nullcontext(SimpleNamespace(fit=Fit(config)))
    )
    for value, steps, validated in ((False, [1, 2], [0, 2]), (True, [], [0])):
        made = []
        config = settings(NEW, f"{key}={value}")
        monkeypatch.setattr(train, "train_step", lambda run, made=made: made.append(run.state.step))
        monkeypatch.setattr(train, "build", lambda prepared, group, stop, config=config: run_of(config)[0])
        report = train.execute(config)
        assert made == steps
        assert [step for step, _, _ in report.validations] == validated
