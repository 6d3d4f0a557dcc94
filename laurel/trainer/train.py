"""The training loop. Everything that depends on the configuration was decided in build.py; here is what happens."""

from __future__ import annotations

from contextlib import closing

from laurel.algos.table import Algorithm
from laurel.batch.build import build_batch
from laurel.batch.token_batch import TokenBatch
from laurel.config.load import Loaded
from laurel.config.tree import Config
from laurel.trainer.build import build, prepare
from laurel.trainer.checkpoints import kept_if_nothing_to_learn, kept_if_stopped, save_checkpoint
from laurel.trainer.report import Report, say
from laurel.trainer.roles import Metrics, Roles
from laurel.trainer.run import Run
from laurel.trainer.run_state import RunState
from laurel.trainer.stop import STOPPED, Interrupted, Stopped, build_stop
from laurel.trainer.validate import validate
from laurel.types import Group
from laurel.workers.group import WorkerGroup
from laurel.workers.session import RaySession


def learn(roles: Roles, algo: Algorithm, state: RunState, groups: list[Group]) -> tuple[TokenBatch, Metrics]:
    """One policy improvement from scored groups; publishes the new weights."""
    batch = build_batch(groups, heads=algo.reward_heads)
    batch = batch.with_(old_log_probs=roles.actor.log_probs(batch))
    batch = batch.with_(ref_log_probs=roles.ref.log_probs(batch))
    batch = batch.with_(values=roles.critic.values(batch))
    batch = batch.with_(logit_grad_squares=roles.gradients.logit_grad_squares(batch))
    batch = batch.with_(rewards=algo.token_rewards(batch, kl_coef=state.kl_coef))
    batch = batch.with_(**algo.advantages(batch))
    trained, metrics = roles.correction.apply(batch)
    metrics |= roles.critic.update(trained) | roles.actor.update(trained)
    metrics |= roles.weights.publish(state.next_version())
    metrics |= algo.kl_metrics(batch, kl_coef=state.kl_coef)
    state.kl_coef = algo.next_kl_coef(batch, kl_coef=state.kl_coef)
    return batch, metrics


def train_step(run: Run) -> None:
    """Sample, score, learn, report."""
    with run.timer("step"):
        with run.stop.at_once(), run.roles.rollouts.awake():
            groups, sampling = run.roles.rollouts.collect(run.next_prompts, step=run.state.step)
        batch, metrics = learn(run.roles, run.algo, run.state, groups)
    run.report.step(run.state, groups, batch, sampling | metrics)
    run.gauge.watch(run.state.step, metrics)


def train(run: Run) -> None:
    """Steps until ``run.total_steps``, with validation and checkpoints when they are due. Raises Stopped."""
    with kept_if_stopped(run):
        _steps(run)


def _steps(run: Run) -> None:
    state = run.state
    run.report.begin(state, run.total_steps)
    if state.step < run.total_steps:
        run.saver.rehearse()
    run.roles.weights.publish(state.policy_version)
    if run.validation.at_start(state.step, done=run.validated_before):
        run.report.validation(state.step, *validate(run))
    while state.step < run.total_steps:
        with kept_if_nothing_to_learn(run):
            state.step += 1
            train_step(run)
        if run.saving.due(state.step) or run.saver.again:
            save_checkpoint(run)
        run.stop.check()
        if run.validation.due(state.step):
            run.report.validation(state.step, *validate(run))
    run.saver.complete(state)


def evaluate(run: Run) -> None:
    """Validate the weights as they are, and stop."""
    run.roles.weights.publish(run.state.policy_version)
    run.report.validation(run.state.step, *validate(run))


def execute(config: Config) -> Report:
    """Prepare, start the ranks, train or validate."""
    with build_stop(config.trainer.max_walltime) as stop:
        prepared = prepare(config)
        with RaySession(config.ray_kwargs.ray_init, say=say) as session:
            stop.listen()
            with (
                WorkerGroup.spawn(
                    config,
                    prepared.updates,
                    alone=session.started,
                    say=say,
                    plan=prepared.fit,
                    examine=prepared.examine,
                ) as group,
                closing(build(prepared.as_fitted(group.fit), group, stop)) as built,
            ):
                evaluate(built) if config.trainer.val_only else train(built)
    return built.report


def run(loaded: Loaded) -> int:
    """What ``laurel train`` does once every check has passed. Returns the process's exit code."""
    try:
        execute(loaded.config)
    except Stopped as stopped:
        say(str(stopped))
        return STOPPED
    except Interrupted as interrupted:  # before the first step: nothing was done yet that could be lost
        say(f"stopped by {interrupted} before training began")
        return STOPPED
    return 0
