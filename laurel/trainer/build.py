"""From the configuration to a run: the only place that decides which roles there are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

from laurel.algos.correction import build_correction
from laurel.algos.table import Algorithm, build_algorithm
from laurel.config.tree import Config
from laurel.data.prompts import PromptTable, load_prompts
from laurel.data.sampler import PromptOrder
from laurel.models.load import inspect
from laurel.models.tokenizer import load_tokenizer, render_prompt, tokenizer_key
from laurel.preflight.doctor.visit import before_run
from laurel.rewards.pool import Scorer, build_scorer
from laurel.rewards.reward_fn import RewardFn, load_reward_fn
from laurel.rollout.pool import EnginePool
from laurel.tracking.console import Progress
from laurel.tracking.loggers import build_loggers
from laurel.tracking.timer import Timer
from laurel.trainer.cadence import Cadence, ValidationCadence, total_steps
from laurel.trainer.checkpoints import find_checkpoint, restore
from laurel.trainer.fit_run import fit_run
from laurel.trainer.gauge import build_gauge
from laurel.trainer.report import Report, say
from laurel.trainer.roles import (
    ActorAfterWarmup,
    ActorOfOneUpdate,
    ActorOfRollout,
    ActorRole,
    NoCritic,
    NoGradients,
    NoRef,
    Roles,
)
from laurel.trainer.rollouts import Rollouts, greedy_sampling, group_selection, training_sampling, validation_sampling
from laurel.trainer.run import Run
from laurel.trainer.run_state import RunState
from laurel.trainer.saver import Saver
from laurel.trainer.stop import Stop
from laurel.types import LaurelError, Prompt
from laurel.workers.clients import ActorClient, CriticClient, RefClient, WeightsClient
from laurel.workers.fit import Fit
from laurel.workers.group import WorkerGroup
from laurel.workers.host import Updates
from laurel.workers.placement import Node
from laurel.workers.rollout_client import rollout_clients
from laurel.workers.session import usable_cores

ALL_STEPS = 2**31  # after every step of any run


@dataclass(frozen=True)
class Prepared:
    """Everything that needs no process but this one, made before any is started."""

    config: Config
    tokenizer: Any
    train_prompts: Sequence[Prompt]
    val_prompts: Sequence[Prompt]
    reward: RewardFn
    algo: Algorithm
    total_steps: int
    checkpoint_dir: Path
    predicted_memory: float | None = None

    def fit(self, free: int) -> Fit:
        """The settings for ranks whose GPUs have ``free`` bytes. Raises LaurelError if they cannot do."""
        return fit_run(self.config, free, validation_rows=len(self.val_prompts), say=say)

    def examine(self, nodes: Sequence[Node]) -> None:
        """The doctor's look at the nodes of the run. Raises NodesError with everything that would make it fail."""
        before_run(self.config, nodes, chain(self.train_prompts, self.val_prompts), self.reward, say=say)

    def as_fitted(self, fit: Fit) -> Prepared:
        """With the settings that the ranks have."""
        return replace(self, config=fit.config, predicted_memory=fit.predicted)

    @property
    def updates(self) -> Updates:
        """Optimizer updates of the whole run, for learning rate schedules."""
        data, actor, critic = self.config.data, self.config.actor_rollout_ref.actor, self.config.critic
        actor_steps = max(1, self.total_steps - self.config.trainer.critic_warmup)
        critic_mini = critic.ppo_mini_batch_size or actor.ppo_mini_batch_size
        return Updates(
            actor=actor_steps * actor.ppo_epochs * -(-data.train_batch_size // actor.ppo_mini_batch_size),
            critic=self.total_steps
            * (critic.ppo_epochs or actor.ppo_epochs)
            * -(-data.train_batch_size // critic_mini),
        )


def prepare(config: Config) -> Prepared:
    """Tokenizer, prompts, reward function and algorithm. Their errors name the file, row or key."""
    inspect(config.actor_rollout_ref.model, say=say)
    if config.critic.enable and config.critic.model.path != config.actor_rollout_ref.model.path:
        inspect(config.critic.model, say=say)
    tokenizer = load_tokenizer(config.actor_rollout_ref.model)
    train = _prompts(config, config.data.train_files, tokenizer, limit=config.data.train_max_samples)
    val = _prompts(config, config.data.val_files, tokenizer, limit=config.data.val_max_samples)
    trainer = config.trainer
    if not trainer.val_only and len(train) < config.data.train_batch_size:
        raise LaurelError(
            f"data.train_batch_size={config.data.train_batch_size} exceeds the {len(train)} training prompts that are "
            f"left ({train.report if isinstance(train, PromptTable) else 'no files'}); use at most {len(train)}"
        )
    steps = total_steps(len(train), config.data.train_batch_size, trainer.total_epochs, trainer.total_training_steps)
    default_dir = Path("checkpoints") / trainer.project_name / trainer.experiment_name
    return Prepared(
        config=config,
        tokenizer=tokenizer,
        train_prompts=train,
        val_prompts=val,
        reward=load_reward_fn(config),
        algo=build_algorithm(config),
        total_steps=steps,
        checkpoint_dir=Path(trainer.default_local_dir or default_dir).absolute(),
    )


def build(prepared: Prepared, group: WorkerGroup, stop: Stop | None = None) -> Run:
    """The run on ``group``'s ranks, gone on from its newest checkpoint if there is one; ``stop`` may end it early."""
    config, trainer = prepared.config, prepared.config.trainer
    timer = Timer()
    state = RunState(kl_coef=config.algorithm.kl_ctrl.kl_coef)
    scorer = build_scorer(config, prepared.reward, cores=usable_cores())
    roles = _roles(prepared, group, timer, state, scorer)
    checkpoint = find_checkpoint(trainer, prepared.checkpoint_dir)
    if checkpoint is not None:
        restore(checkpoint, config, roles, state)
    report = _report(prepared, timer, group.world, resumed_step=_logged_until(config, state, checkpoint))
    return Run(
        config=config,
        roles=roles,
        algo=prepared.algo,
        state=state,
        timer=timer,
        report=report,
        scorer=scorer,
        gauge=build_gauge(config.algorithm.rollout_correction, say),
        train_prompts=prepared.train_prompts,
        val_prompts=prepared.val_prompts,
        order=PromptOrder(max(1, len(prepared.train_prompts)), config.data.seed, config.data.shuffle),
        draw_size=config.prompts_at_once,
        total_steps=prepared.total_steps,
        saving=Cadence(trainer.save_freq, last=prepared.total_steps),
        validation=ValidationCadence(
            trainer.test_freq,
            last=prepared.total_steps,
            before_train=trainer.val_before_train,
            has_data=len(prepared.val_prompts) > 0,
        ),
        checkpoint_dir=prepared.checkpoint_dir,
        saver=Saver(prepared.checkpoint_dir, config, roles, say, saved_step=None if checkpoint is None else state.step),
        validated_before=checkpoint is not None and report.validated(state.step, checkpoint),
        stop=stop or Stop(),
    )


def _logged_until(config: Config, state: RunState, checkpoint: Path | None) -> int | None:
    """The step after which a log is written anew; None for a new run. Validation alone only adds to it."""
    if config.trainer.val_only:
        return ALL_STEPS
    return None if checkpoint is None else state.step


def _roles(prepared: Prepared, group: WorkerGroup, timer: Timer, state: RunState, scorer: Scorer) -> Roles:
    config = prepared.config

    def step() -> int:
        return state.step

    weights = WeightsClient(group, timer=timer)
    policy = ActorClient(group, config, timer=timer, step=step)
    needs_critic = bool(config.critic.enable)
    return Roles(
        actor=_actor(config, policy, state),
        ref=RefClient(group, config, timer=timer) if config.needs_reference else NoRef(),
        critic=CriticClient(group, config, timer=timer, step=step) if needs_critic else NoCritic(),
        rollouts=_rollouts(prepared, group, weights, timer, scorer),
        weights=weights,
        correction=build_correction(config.algorithm.rollout_correction),
        gradients=policy if prepared.algo.logit_grad_squares else NoGradients(),
    )


def _actor(config: Config, client: ActorClient, state: RunState) -> ActorRole:
    actor: ActorRole = client
    if config.algorithm.rollout_correction.bypass_mode:
        actor = ActorOfRollout(actor)
    elif config.ratio_is_one:
        actor = ActorOfOneUpdate(actor)
    if config.trainer.critic_warmup > 0:
        actor = ActorAfterWarmup(actor, state, config.trainer.critic_warmup)
    return actor


def one_update_per_batch(config: Config) -> bool:
    actor = config.actor_rollout_ref.actor
    return actor.ppo_epochs == 1 and actor.ppo_mini_batch_size >= config.data.train_batch_size


def _rollouts(prepared: Prepared, group: WorkerGroup, weights: WeightsClient, timer: Timer, scorer: Scorer) -> Rollouts:
    config, tokenizer = prepared.config, prepared.tokenizer
    return Rollouts(
        pool=EnginePool(rollout_clients(group, say=say)),
        wake=weights.awake,
        scorer=scorer,
        decode=_decoder(tokenizer),
        seed=config.trainer.seed,
        n=config.actor_rollout_ref.rollout.n,
        sampling=training_sampling(config),
        baseline=greedy_sampling(config) if prepared.algo.greedy_baseline else None,
        select=group_selection(config, rows=len(prepared.train_prompts)),
        val_n=config.actor_rollout_ref.rollout.val_kwargs.n,
        val_sampling=validation_sampling(config),
        timer=timer,
        progress=Progress(),
    )


def _decoder(tokenizer: Any) -> Callable[[Sequence[int]], str]:
    def decode(token_ids: Sequence[int]) -> str:
        return str(tokenizer.decode(list(token_ids), skip_special_tokens=True))

    return decode


def _report(prepared: Prepared, timer: Timer, ranks: int, *, resumed_step: int | None) -> Report:
    trainer = prepared.config.trainer
    validation_dir = Path(trainer.validation_data_dir or prepared.checkpoint_dir / "validation")
    return Report(
        loggers=build_loggers(prepared.config, prepared.checkpoint_dir, resumed_step=resumed_step),
        timer=timer,
        ranks=ranks,
        rows_per_epoch=max(1, len(prepared.train_prompts)),
        validation_dir=validation_dir,
        rollout_dir=Path(trainer.rollout_data_dir) if trainer.rollout_data_dir else None,
        predicted_memory=prepared.predicted_memory,
    )


def _prompts(config: Config, files: Sequence[str], tokenizer: Any, *, limit: int) -> Sequence[Prompt]:
    if not files:
        return ()
    kwargs = config.data.apply_chat_template_kwargs

    def render(messages: Any) -> list[int]:
        return render_prompt(tokenizer, messages, **kwargs)

    key = tokenizer_key(tokenizer, **kwargs)
    table = load_prompts(files, config.data, render, cache_key=key, limit=limit)
    say(table.report)
    return table
