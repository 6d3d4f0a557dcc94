"""The works that are measured: which prompts, how many samples, how long the responses. No torch, no laurel.

Response lengths are set by ``max_tokens`` with the end token ignored, since random weights know no end. Everything
random here is drawn from fixed seeds, so all sides get the same requests.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from benchmarks.words import spaced


@dataclass(frozen=True)
class Work:
    """``prompts`` x ``samples`` sequences of ``prompt`` tokens, answered with at most ``response`` tokens.

    ``median`` and ``sigma`` draw log-normal response lengths; without them each has exactly ``response`` tokens.
    ``slots`` is how many sequences decode at once.
    """

    name: str
    about: str
    prompts: int
    samples: int
    prompt: int
    response: int
    slots: int
    median: float | None = None
    sigma: float = 0.0
    greedy: bool = False

    @property
    def sequences(self) -> int:
        return self.prompts * self.samples

    @property
    def longest(self) -> int:
        return self.prompt + self.response

    def lengths(self) -> list[int]:
        """Response tokens of each sequence; samples of one prompt follow each other."""
        if self.median is None:
            return [self.response] * self.sequences
        draw = random.Random(7)
        drawn = (draw.lognormvariate(math.log(self.median), self.sigma) for _ in range(self.sequences))
        return [max(1, min(self.response, round(length))) for length in drawn]

    def prompt_ids(self, vocab: int) -> list[tuple[int, ...]]:
        """The distinct prompts: random words of the vocabulary."""
        draw, words = random.Random(11), spaced(vocab)
        return [tuple(draw.choices(words, k=self.prompt)) for _ in range(self.prompts)]

    def asked(self, vocab: int) -> list[Asked]:
        """The sequences, in order."""
        lengths = iter(self.lengths())
        return [
            Asked(number, ids, next(lengths))
            for number, ids in enumerate(self.prompt_ids(vocab))
            for _ in range(self.samples)
        ]


@dataclass(frozen=True)
class Asked:
    """One sequence: the number of its prompt, the prompt, and how many tokens are wanted."""

    group: int
    prompt: tuple[int, ...]
    tokens: int


FULL = {
    work.name: work
    for work in (
        Work("G", "GRPO's rollout, every response as long as the next", 128, 8, 128, 512, slots=1024),
        Work("S", "ragged responses, slots refilled", 256, 8, 128, 1024, slots=512, median=200, sigma=0.6),
        Work("V", "validation of GSM8K's size, greedy", 1319, 1, 128, 512, slots=1024, greedy=True),
        Work("L", "a model that fills the GPU", 64, 8, 512, 1024, slots=512),
    )
}
SMALL = {
    "G": replace(FULL["G"], prompts=4, samples=4, prompt=16, response=16, slots=16),
    "S": replace(FULL["S"], prompts=8, samples=4, prompt=16, response=32, slots=8, median=8),
    "V": replace(FULL["V"], prompts=13, prompt=16, response=12, slots=16),
    "L": replace(FULL["L"], prompts=2, samples=4, prompt=24, response=16, slots=8),
}


def works(size: str) -> dict[str, Work]:
    return {"full": FULL, "small": SMALL}[size]


def same_slots(work: Work) -> Work:
    """What a ragged work is compared with: an equal response in each of its slots, so that all are always busy."""
    return Work(
        f"{work.name}=",
        f"as many equal responses as {work.name} has slots",
        max(1, work.slots // work.samples),
        work.samples,
        work.prompt,
        work.response // 2,
        slots=work.slots,
    )


def warm_up(asked: Sequence[Asked]) -> list[Asked]:
    """The same batch sizes with a sixteenth of the tokens: compiles and captures what the timed call will use."""
    return [replace(one, tokens=max(1, one.tokens // 16)) for one in asked]


def training_rows(work: Work, vocab: int) -> list[tuple[int, tuple[int, ...], tuple[int, ...]]]:
    """(group, prompt, response) of each sequence of a work, responses drawn at random: a batch without a rollout."""
    draw = random.Random(13)
    return [(one.group, one.prompt, tuple(draw.choices(range(vocab), k=one.tokens))) for one in work.asked(vocab)]
