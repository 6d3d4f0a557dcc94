"""The rollouts role: engines, sampling settings, reward and progress put together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

from laurel.config.tree import Config, ValKwargs
from laurel.rewards.pool import Scorer
from laurel.rollout.collect import collect
from laurel.rollout.filter_groups import EveryGroup, InformativeGroups
from laurel.rollout.pool import EnginePool
from laurel.rollout.seeds import sample_seed
from laurel.tracking.console import Progress
from laurel.tracking.timer import Timer
from laurel.trainer.report import say
from laurel.trainer.roles import Metrics
from laurel.trainer.scoring import ScoringLog
from laurel.types import Group, Prompt, SamplingParams, Score, Trajectory, Unscored

# Validation must not share random numbers with any training step.
VALIDATION_STEP = 2**62


@dataclass(frozen=True)
class Rollouts:
    """Samples and scores trajectories; implements RolloutsRole.

    ``wake`` gives the context in which engines hold the published weights. ``decode`` turns response token ids into
    the text that the reward function sees, special tokens left out. ``select`` says which groups a step learns from,
    and ``baseline`` how a prompt is answered once more for algorithms that compare with that.
    """

    pool: EnginePool
    wake: Callable[[], AbstractContextManager[None]]
    scorer: Scorer
    decode: Callable[[Sequence[int]], str]
    seed: int
    n: int
    sampling: SamplingParams
    baseline: SamplingParams | None
    select: EveryGroup | InformativeGroups
    val_n: int
    val_sampling: SamplingParams
    timer: Timer
    progress: Progress

    def awake(self) -> AbstractContextManager[None]:
        return self.wake()

    def collect(self, draw: Callable[[], Sequence[Prompt]], *, step: int) -> tuple[list[Group], Metrics]:
        """The groups of ``rollout.n`` trajectories that ``step`` learns from; ``draw`` gives the next prompts."""
        drawn: dict[int, int] = {}
        tokens = 0
        scoring = ScoringLog()

        def sample(prompts: Sequence[Prompt]) -> list[Group]:
            nonlocal tokens
            groups = self._sample(
                "rollout",
                prompts,
                n=self.n,
                sampling=self.sampling,
                baseline=self.baseline,
                step=step,
                draws=numbered_draws(prompts, drawn),
                log=scoring,
            )
            tokens += sum(_tokens(group) for group in groups)
            return groups

        with self.timer("gen"):
            gathered = self.select.gather(draw, sample, step=step)
        learned = sum(len(t.response_ids) for group in gathered.groups for t in group.trajectories)
        discarded = {"rollout/discarded_tokens": float(tokens - learned)}
        return gathered.groups, gathered.metrics | discarded | scoring.metrics()

    def answer(self, prompts: Sequence[Prompt]) -> list[Group]:
        return self._sample(
            "validation",
            prompts,
            n=self.val_n,
            sampling=self.val_sampling,
            baseline=None,
            step=VALIDATION_STEP,
            draws=numbered_draws(prompts, {}),
            log=ScoringLog(),
        )

    def _sample(
        self,
        name: str,
        prompts: Sequence[Prompt],
        *,
        n: int,
        sampling: SamplingParams,
        baseline: SamplingParams | None,
        step: int,
        draws: Sequence[int],
        log: ScoringLog,
    ) -> list[Group]:
        """Raises RewardError if half of the trajectories or more cannot be scored; adds all to ``log``."""

        def seed(position: int, sample: int) -> int:
            # A row drawn twice (a step may span epochs) must not get the same samples twice
            return sample_seed(self.seed, step, prompts[position].index, draws[position] * n + sample)

        total = len(prompts) * (n + (baseline is not None))
        seen = ScoringLog()
        out: dict[tuple[int, int], None] = {}  # being scored, the one that began first at the front
        with self.progress.phase(name, total=total, unit="trajectories") as phase:

            async def score(trajectory: Trajectory, prompt: Prompt) -> Score | Unscored:
                out[prompt.index, trajectory.sample] = None
                phase.waiting_for = _named(out)
                length = len(trajectory.response_ids)
                scored = await self.scorer.score(trajectory.text, prompt, trajectory.sample, length=length)
                seen.add(prompt, trajectory.sample, scored)
                out.pop((prompt.index, trajectory.sample), None)
                phase.waiting_for = _named(out)
                return scored.result

            groups = asyncio.run(
                collect(
                    prompts,
                    generate=self.pool.generate,
                    n=n,
                    sampling=sampling,
                    seed=seed,
                    decode=self.decode,
                    score=score,
                    baseline=baseline,
                    on_done=lambda done, total: phase.advance(done - phase.done),
                    on_wait=say,
                )
            )
        log.add_all(seen)
        for line in seen.lines():
            say(line)
        seen.require_most()
        return groups


def _named(scoring: Mapping[tuple[int, int], None]) -> str:
    for row, sample in scoring:
        return f"the score of row {row}, sample {sample}"
    return ""


def numbered_draws(prompts: Sequence[Prompt], drawn: dict[int, int]) -> list[int]:
    """How often each prompt's row was drawn before; ``drawn`` counts by row, and goes on counting.

    Example: rows 3, 5, 3 give 0, 0, 1; after them rows 3, 6 give 2, 0.
    """
    draws = []
    for prompt in prompts:
        draws.append(drawn.get(prompt.index, 0))
        drawn[prompt.index] = draws[-1] + 1
    return draws


def _tokens(group: Group) -> int:
    """Response tokens that were sampled for a group, its baseline included."""
    answers = (*group.trajectories, *([] if group.baseline is None else [group.baseline]))
    return sum(len(answer.response_ids) for answer in answers)


def training_sampling(config: Config) -> SamplingParams:
    rollout = config.actor_rollout_ref.rollout
    return SamplingParams(
        max_tokens=config.data.max_response_length,
        temperature=rollout.temperature,
        top_p=rollout.top_p,
        top_k=rollout.top_k,
        ignore_eos=rollout.ignore_eos,
    )


def greedy_sampling(config: Config) -> SamplingParams:
    """The baseline that ReMax compares with: the likeliest token each time, of the same lengths."""
    return replace(training_sampling(config), temperature=0.0, top_p=1.0, top_k=-1)


def group_selection(config: Config, *, rows: int) -> EveryGroup | InformativeGroups:
    """What algorithm.filter_groups asks for; ``rows`` is the number of training prompts."""
    settings = config.algorithm.filter_groups
    if not settings.enable:
        return EveryGroup()
    return InformativeGroups(
        want=config.data.train_batch_size,
        metric=settings.metric,
        most=settings.max_num_gen_batches,
        rows=rows,
        say=say,
    )


def validation_sampling(config: Config) -> SamplingParams:
    """Greedy unless val_kwargs.do_sample is set."""
    val: ValKwargs = config.actor_rollout_ref.rollout.val_kwargs
    if not val.do_sample:
        return SamplingParams(max_tokens=config.data.max_response_length, temperature=0.0)
    return SamplingParams(
        max_tokens=config.data.max_response_length,
        temperature=val.temperature,
        top_p=val.top_p,
        top_k=val.top_k,
    )
