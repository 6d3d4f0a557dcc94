"""The sequences in slots, and the step that gives each of them one more token."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn

from laurel.models.slots import Run, SlotCache, SlotStep
from laurel.rollout.engine import EngineError
from laurel.rollout.native.sampling import sample, signed, uniforms
from laurel.rollout.native.waiting import Admitted, Sequence, Waiting
from laurel.types import FinishReason


@dataclass
class Counters:
    """What an engine computed. ``occupancy`` is the mean share of slots that decoded in a forward."""

    max_slots: int
    forwards: int = 0
    prefill_tokens: int = 0
    """Prompt tokens computed: those of a shared prompt count once."""
    decode_tokens: int = 0
    """Tokens fed one per slot."""
    decode_forwards: int = 0
    sampled_tokens: int = 0

    @property
    def occupancy(self) -> float:
        return self.decode_tokens / (self.decode_forwards * self.max_slots) if self.decode_forwards else 0.0


@dataclass
class _Chunk:
    """Consecutive prompt tokens of one slot within a forward; the last of a prompt gives the first token's logits."""

    slot: int
    start: int
    token_ids: tuple[int, ...]
    last: bool


@dataclass
class Batch:
    """Slots 0..n-1 hold the n live sequences: a sequence that ends is replaced by the last one, so decoding computes
    nothing for free slots. Prompts are prefilled into the slots after them, in the same forward."""

    module: nn.Module
    cache: SlotCache
    prefill_tokens: int
    counters: Counters
    live: list[Sequence] = field(default_factory=list)
    _saved: dict[tuple[int, ...], tuple[Tensor, Tensor]] = field(default_factory=dict)
    """Cache and logits (1, V) of the prompt that was admitted in part; its other samples start from there."""

    @property
    def preempted(self) -> list[Sequence]:
        """Nobody: a slot has room for a whole sequence."""
        return []

    def admit(self, waiting: Waiting) -> list[Admitted]:
        """Take from ``waiting`` what has room in slots."""
        return waiting.take(self.cache.slots - len(self.live))

    def step(self, admitted: list[Admitted]) -> list[tuple[Sequence, FinishReason]]:
        """Give every live and every admitted sequence its next token; those that ended with it, with the reason."""
        logits = self._compute(admitted)
        for group in admitted:
            self.live += group.sequences
        return self._release(self._sample(logits))

    def forget(self) -> None:
        """Empty all slots."""
        self.live, self._saved = [], {}

    def drop(self, ids: frozenset[str]) -> list[Sequence]:
        """Take the sequences of these requests out of their slots."""
        self._saved = {}
        dropped = [sequence for sequence in self.live if sequence.request.id in ids]
        self._compact([sequence.request.id not in ids for sequence in self.live])
        return dropped

    def _compute(self, admitted: list[Admitted]) -> Tensor:
        """Logits (n, V) of the next token of every live sequence, then of every admitted one."""
        homes = list(accumulate((len(group.sequences) for group in admitted), initial=len(self.live)))
        new = [(home, group.context_ids) for home, group in zip(homes, admitted, strict=False)]
        decoded, prefilled = self._forwards([(home, prompt) for home, prompt in new if prompt not in self._saved])
        rows = [] if decoded is None else [decoded]
        for home, group in zip(homes, admitted, strict=False):
            slots = range(home, home + len(group.sequences))
            row = self._place(group, slots, prefilled.get(home))
            rows.append(row.expand(len(slots), -1))
        return rows[0] if len(rows) == 1 else torch.cat(rows)

    def _place(self, group: Admitted, slots: range, prefilled: Tensor | None) -> Tensor:
        """The group's prompt into all its slots, from the one it was prefilled into or from what was saved of it.

        The prompt's logits (1, V) are returned; prompt and logits are saved while others of the group wait.
        """
        length = len(group.context_ids)
        if prefilled is None:
            tokens, logits = self._saved[group.context_ids]
            for slot in slots:
                self.cache.write(slot, tokens)
        else:
            logits = prefilled
            self.cache.copy(slots[0], list(slots[1:]), length)
            if group.more:
                self._saved[group.context_ids] = (self.cache.read(slots[0], length), logits.clone())
        if not group.more:
            self._saved.pop(group.context_ids, None)
        return logits

    def _forwards(self, prompts: list[tuple[int, tuple[int, ...]]]) -> tuple[Tensor | None, dict[int, Tensor]]:
        """Decode all live slots and prefill ``prompts`` (slot, ids); logits (n, V), and (1, V) by prefilled slot.

        At most ``prefill_tokens`` prompt tokens go into one forward: the first takes the decoding slots along.
        """
        decoded, prefilled = None, {}
        for i, chunks in enumerate(_in_budget(prompts, self.prefill_tokens) or [[]]):
            live = self.live if i == 0 else []
            if not live and not chunks:
                continue
            logits = self._forward(live, chunks)
            if live:
                decoded = logits[: len(live)]
            ends = [chunk for chunk in chunks if chunk.last]
            for row, chunk in enumerate(ends, len(live)):
                prefilled[chunk.slot] = logits[row : row + 1]
        return decoded, prefilled

    def _forward(self, live: list[Sequence], chunks: list[_Chunk]) -> Tensor:
        """One forward of the module; logits of the live slots and of each prompt that ends in ``chunks``."""
        device = self.cache.data.device
        runs, ids, wanted = [], [sequence.token_ids[-1] for sequence in live], list(range(len(live)))
        for same in _alike(chunks):
            runs.append(Run(tuple(chunk.slot for chunk in same), same[0].start, len(same[0].token_ids)))
            for chunk in same:
                ids += chunk.token_ids
                if chunk.last:
                    wanted.append(len(ids) - 1)
        positions = torch.tensor([sequence.position for sequence in live], dtype=torch.int64, device=device)
        step = SlotStep(self.cache, positions, tuple(runs))
        keep: Any = torch.tensor(wanted, dtype=torch.int64, device=device) if len(wanted) < len(ids) else 0
        logits = self.module(
            input_ids=torch.tensor([ids], device=device),
            position_ids=step.position_ids,
            use_cache=False,
            logits_to_keep=keep,
            slots=step,
        ).logits[0]
        if step.calls != self.cache.shape.layers:
            raise EngineError(
                f"{type(self.module).__name__} sent {step.calls} of {self.cache.shape.layers} layers through the slot "
                "cache: it has layers that the native engine does not serve; use rollout.name=vllm or another model"
            )
        self.counters.forwards += 1
        self.counters.decode_forwards += bool(live)
        self.counters.decode_tokens += len(live)
        self.counters.prefill_tokens += len(ids) - len(live)
        return logits

    def _sample(self, logits: Tensor) -> list[FinishReason | None]:
        """One token for each live sequence; the finish reason of each, None where it goes on."""
        device = logits.device
        seeds = torch.tensor([signed(sequence.request.seed) for sequence in self.live], device=device)
        counts = torch.tensor([len(sequence.token_ids) for sequence in self.live], device=device)
        settings = [sequence.request.sampling for sequence in self.live]
        tokens, log_probs = sample(logits, settings, uniforms(seeds, counts))
        if not bool(log_probs.isfinite().all()):
            broken = self.live[int(log_probs.isfinite().long().argmin())].request.id
            raise EngineError(f"the logits of request {broken!r} are not finite: the policy's weights are broken")
        self.counters.sampled_tokens += len(self.live)
        return [
            sequence.append(token, log_prob)
            for sequence, token, log_prob in zip(self.live, tokens.tolist(), log_probs.tolist(), strict=True)
        ]

    def _release(self, reasons: list[FinishReason | None]) -> list[tuple[Sequence, FinishReason]]:
        ended = [(sequence, reason) for sequence, reason in zip(self.live, reasons, strict=True) if reason is not None]
        self._compact([reason is None for reason in reasons])
        return ended

    def _compact(self, stays: list[bool]) -> None:
        """Keep the sequences that stay, moved into slots 0..m-1."""
        remaining = sum(stays)
        movers = [slot for slot in range(remaining, len(stays)) if stays[slot]]
        for hole in (slot for slot in range(remaining) if not stays[slot]):
            mover = movers.pop()
            self.cache.copy(mover, [hole], self.live[mover].position)
            self.live[hole] = self.live[mover]
        del self.live[remaining:]


def _in_budget(prompts: list[tuple[int, tuple[int, ...]]], budget: int) -> list[list[_Chunk]]:
    """Cut prompts into forwards of at most ``budget`` prompt tokens each, in order."""
    forwards: list[list[_Chunk]] = []
    room = 0
    for slot, ids in prompts:
        start = 0
        while start < len(ids):
            if not room:
                forwards.append([])
                room = budget
            end = min(len(ids), start + room)
            forwards[-1].append(_Chunk(slot, start, ids[start:end], end == len(ids)))
            room -= end - start
            start = end
    return forwards


def _alike(chunks: list[_Chunk]) -> list[list[_Chunk]]:
    """Neighbours of one start and length, which are attended together. The order of chunks stays."""
    alike: list[list[_Chunk]] = []
    for chunk in chunks:
        if alike and (alike[-1][0].start, len(alike[-1][0].token_ids)) == (chunk.start, len(chunk.token_ids)):
            alike[-1].append(chunk)
        else:
            alike.append([chunk])
    return alike
