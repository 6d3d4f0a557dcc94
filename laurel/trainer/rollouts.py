"""The rollouts role: engines, sampling settings, reward and progress put together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from laurel.config.tree import Config, ValKwargs
from laurel.rewards.reward_fn import RewardFn
from laurel.rollout.collect import collect
from laurel.rollout.pool import EnginePool
from laurel.rollout.seeds import sample_seed
from laurel.tracking.console import Progress
from laurel.tracking.timer import Timer
from laurel.trainer.report import say
from laurel.types import Group, Prompt, SamplingParams, Score

# Validation must not share random numbers with any training step.
VALIDATION_STEP = 2**62


@dataclass(frozen=True)
class Rollouts:
    """Samples and scores trajectories; implements RolloutsRole.

    ``wake`` gives the context in which engines hold the published weights. ``decode`` turns response token ids into
    the text that the reward function sees, special tokens left out.
    """

    pool: EnginePool
    wake: Callable[[], AbstractContextManager[None]]
    reward: RewardFn
    decode: Callable[[Sequence[int]], str]
    seed: int
    n: int
    sampling: SamplingParams
    val_n: int
    val_sampling: SamplingParams
    timer: Timer
    progress: Progress

    def awake(self) -> AbstractContextManager[None]:
        return self.wake()

    def collect(self, prompts: Sequence[Prompt], *, step: int, keep: Callable[[Group], bool]) -> list[Group]:
        """One group of ``rollout.n`` scored trajectories per prompt, less those that the algorithm does not keep."""
        with self.timer("gen"):
            return self._sample("rollout", prompts, n=self.n, sampling=self.sampling, step=step, keep=keep)

    def answer(self, prompts: Sequence[Prompt]) -> list[Group]:
        return self._sample(
            "validation",
            prompts,
            n=self.val_n,
            sampling=self.val_sampling,
            step=VALIDATION_STEP,
            keep=lambda group: True,
        )

    def _sample(
        self,
        name: str,
        prompts: Sequence[Prompt],
        *,
        n: int,
        sampling: SamplingParams,
        step: int,
        keep: Callable[[Group], bool],
    ) -> list[Group]:
        draws = numbered_draws(prompts)

        def seed(position: int, sample: int) -> int:
            # A row drawn twice (a batch may span epochs) must not get the same samples twice
            return sample_seed(self.seed, step, prompts[position].index, draws[position] * n + sample)

        with self.progress.phase(name, total=len(prompts) * n, unit="trajectories") as phase:

            def score(text: str, prompt: Prompt, sample: int) -> Score:
                # Runs in this thread: while it does, only the progress thread can say what is waited for
                phase.waiting_for = f"the score of row {prompt.index}, sample {sample}"
                found = self.reward.score(text, prompt, sample)
                phase.waiting_for = ""
                return found

            return asyncio.run(
                collect(
                    prompts,
                    generate=self.pool.generate,
                    n=n,
                    sampling=sampling,
                    seed=seed,
                    decode=self.decode,
                    score=score,
                    keep=keep,
                    on_done=lambda done, total: phase.advance(done - phase.done),
                    on_wait=say,
                )
            )


def numbered_draws(prompts: Sequence[Prompt]) -> list[int]:
    """How often each prompt's row came before in the batch. Example: rows 3, 5, 3 give 0, 0, 1."""
    seen: dict[int, int] = {}
    draws = []
    for prompt in prompts:
        draws.append(seen.get(prompt.index, 0))
        seen[prompt.index] = draws[-1] + 1
    return draws


def training_sampling(config: Config) -> SamplingParams:
    rollout = config.actor_rollout_ref.rollout
    return SamplingParams(
        max_tokens=config.data.max_response_length,
        temperature=rollout.temperature,
        top_p=rollout.top_p,
        top_k=rollout.top_k,
        ignore_eos=rollout.ignore_eos,
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
