"""Requests that wait for a slot, by prompt: those that share a prompt are admitted one after the other."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field

from laurel.types import Completion, FinishReason, Request


@dataclass(slots=True, eq=False)
class Sequence:
    """A request on its way: what was sampled, and whom to tell. ``stops`` are the token ids that end it."""

    request: Request
    stops: frozenset[int]
    future: Future[Completion] = field(default_factory=Future)
    token_ids: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)

    @property
    def context_ids(self) -> tuple[int, ...]:
        """What must be in the cache before the next token: prompt and what was sampled."""
        return self.request.prompt_ids + tuple(self.token_ids) if self.token_ids else self.request.prompt_ids

    @property
    def position(self) -> int:
        """Place in the cache of the last token, which the next forward computes."""
        return len(self.request.prompt_ids) + len(self.token_ids) - 1

    def append(self, token: int, log_prob: float) -> FinishReason | None:
        """Take one sampled token; why the sequence ends with it, if it does."""
        self.token_ids.append(token)
        self.log_probs.append(log_prob)
        if token in self.stops:
            return "stop"
        return "length" if len(self.token_ids) >= self.request.sampling.max_tokens else None

    def finish(self, reason: FinishReason, policy_version: int) -> None:
        """Hand the completion over."""
        completion = Completion(
            self.request.id, tuple(self.token_ids), tuple(self.log_probs), reason, policy_version=policy_version
        )
        if self.future.set_running_or_notify_cancel():
            self.future.set_result(completion)

    def fail(self, error: BaseException) -> None:
        if self.future.set_running_or_notify_cancel():
            self.future.set_exception(error)


@dataclass(slots=True)
class Admitted:
    """Sequences of one prompt that get slots together; ``more`` says that others with this prompt still wait."""

    sequences: list[Sequence]
    more: bool

    @property
    def context_ids(self) -> tuple[int, ...]:
        return self.sequences[0].context_ids


class Waiting:
    """First come, first served by prompt, so that at most one prompt is admitted in part at any time."""

    def __init__(self) -> None:
        self._by_prompt: OrderedDict[tuple[int, ...], deque[Sequence]] = OrderedDict()
        self.count = 0

    def add(self, sequence: Sequence) -> None:
        self._by_prompt.setdefault(sequence.context_ids, deque()).append(sequence)
        self.count += 1

    def add_first(self, sequence: Sequence) -> None:
        """One that had begun goes on before others begin."""
        self.add(sequence)
        self._by_prompt.move_to_end(sequence.context_ids, last=False)

    def take(self, most: int, fits: Callable[[tuple[int, ...], int], int] | None = None) -> list[Admitted]:
        """Up to ``most`` sequences. Only the last of the list can have ``more``.

        ``fits`` says how many of so many sequences with one context there is room for.
        """
        taken: list[Admitted] = []
        while most and self._by_prompt:
            prompt, queue = next(iter(self._by_prompt.items()))
            wanted = min(most, len(queue))
            count = wanted if fits is None else fits(prompt, wanted)
            if not count:
                break
            siblings = [queue.popleft() for _ in range(count)]
            if not queue:
                del self._by_prompt[prompt]
            most -= len(siblings)
            self.count -= len(siblings)
            taken.append(Admitted(siblings, more=bool(queue)))
            if count < wanted:
                break
        return taken

    def remove(self, ids: frozenset[str]) -> list[Sequence]:
        """Take out the sequences of these request ids."""
        everything = self.clear()
        for sequence in everything:
            if sequence.request.id not in ids:
                self.add(sequence)
        return [sequence for sequence in everything if sequence.request.id in ids]

    def clear(self) -> list[Sequence]:
        """Take out all."""
        everything = [sequence for queue in self._by_prompt.values() for sequence in queue]
        self._by_prompt.clear()
        self.count = 0
        return everything
