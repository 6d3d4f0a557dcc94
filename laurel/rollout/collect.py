"""From prompts to groups of scored trajectories."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from laurel.types import Completion, Group, Prompt, Request, SamplingParams, Score, Trajectory, Turn, Unscored

Done = tuple[int, int, Trajectory]
_NAMED = 3


async def collect(
    prompts: Sequence[Prompt],
    *,
    generate: Callable[[int, Request], Awaitable[Completion]],
    n: int,
    sampling: SamplingParams,
    seed: Callable[[int, int], int],
    score: Callable[[Trajectory, Prompt], Awaitable[Score | Unscored]],
    decode: Callable[[Sequence[int]], str],
    baseline: SamplingParams | None = None,
    on_done: Callable[[int, int], None] = lambda done, total: None,
    on_wait: Callable[[str], None] = lambda line: None,
    wait_s: float = 30.0,
    tag: str = "",
) -> list[Group]:
    """Sample ``n`` trajectories of each prompt and score each as it arrives; groups in the order of ``prompts``.

    ``generate(position, request)`` is a pool's; ``seed(position, sample)`` decides a sample's random numbers;
    ``score(trajectory, prompt)`` is awaited while others are still sampled. With ``baseline`` settings each prompt is
    answered once more with them: as sample ``n``, scored alike, the group's baseline. ``on_done(count, total)`` follows
    every trajectory, and ``on_wait(line)`` says what is missing whenever nothing arrived for ``wait_s`` seconds. A
    trajectory that cannot be scored is an outcome like another (Unscored); the first error that an engine or ``score``
    raises cancels the rest and is raised here. ``tag`` begins the request ids.

    Example: 2 prompts, n=3: six requests, "0/0", "0/1", ... "1/2"; two groups of three trajectories. With a baseline
    also "0/3" and "1/3".
    """
    settings = [sampling] * n + ([] if baseline is None else [baseline])
    results: asyncio.Queue[Done | BaseException] = asyncio.Queue()

    async def one(position: int, sample: int) -> None:
        prompt, name = prompts[position], f"{tag}{position}"
        request = Request(f"{name}/{sample}", prompt.input_ids, settings[sample], seed(position, sample), group=name)
        try:
            trajectory = _trajectory(sample, await generate(position, request), decode)
            scoring.add((position, sample))
            result = await score(trajectory, prompt)
            judged = {"score": result} if isinstance(result, Score) else {"unscored": result}
            results.put_nowait((position, sample, replace(trajectory, **judged)))
        except Exception as error:
            results.put_nowait(error)

    missing = {(position, sample): None for position in range(len(prompts)) for sample in range(len(settings))}
    scoring: set[tuple[int, int]] = set()
    total = len(missing)
    trajectories: dict[tuple[int, int], Trajectory] = {}
    tasks = [asyncio.ensure_future(one(position, sample)) for position, sample in missing]
    try:
        while missing:
            try:
                result = await asyncio.wait_for(results.get(), wait_s)
            except TimeoutError:
                on_wait(_waiting_line(prompts, list(missing), scoring, total, wait_s))
                continue
            if isinstance(result, BaseException):
                raise result
            position, sample, trajectories[position, sample] = result
            del missing[position, sample]
            on_done(len(trajectories), total)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return [
        Group(
            prompt,
            tuple(trajectories[position, sample] for sample in range(n)),
            baseline=None if baseline is None else trajectories[position, n],
        )
        for position, prompt in enumerate(prompts)
    ]


def _trajectory(sample: int, completion: Completion, decode: Callable[[Sequence[int]], str]) -> Trajectory:
    return Trajectory(
        sample=sample,
        turns=(Turn(completion.token_ids, sampled=True, log_probs=completion.log_probs),),
        finish_reason=completion.finish_reason,
        policy_version=completion.policy_version,
        text=decode(completion.token_ids),
    )


def _waiting_line(
    prompts: Sequence[Prompt],
    missing: list[tuple[int, int]],
    scoring: set[tuple[int, int]],
    total: int,
    wait_s: float,
) -> str:
    named = ", ".join(
        f"{'the score of ' if (position, sample) in scoring else ''}prompt {prompts[position].index} sample {sample}"
        for position, sample in missing[:_NAMED]
    )
    more = f" and {len(missing) - _NAMED} more" if len(missing) > _NAMED else ""
    return f"nothing arrived for {wait_s:.0f} s; waiting for {len(missing)} of {total} trajectories: {named}{more}"
