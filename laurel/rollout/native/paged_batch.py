"""The sequences in slots over a paged cache, stepped many tokens ahead of what the host knows.

The host launches a few steps at a time and then looks at how those before them ended, so a GPU never waits for it. A
sequence that ended is computed for a few steps more, without effect: its slot is left alone by every step.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from laurel.models.decoder import Decoder
from laurel.models.devices import moved
from laurel.models.paged import PAGE, PagedCache, pages_for
from laurel.rollout.engine import EngineError
from laurel.rollout.native.batch import Counters
from laurel.rollout.native.draw import draw, take
from laurel.rollout.native.pages import PagePool
from laurel.rollout.native.prefill import Prefill
from laurel.rollout.native.sampling import sample, signed, uniforms
from laurel.rollout.native.state import BROKEN, LIVE, MOST_STOPS, REASONS, STOPPED, SlotState
from laurel.rollout.native.steps import Steps
from laurel.rollout.native.waiting import Admitted, Sequence, Waiting
from laurel.types import FinishReason, SamplingParams

_STEPS_AHEAD = 4
_STEPS_AHEAD_OF_A_PREFILL = 8  # while others wait: a prefill is launched in the time that these steps take
_SLOTS_PER_PREFILL = 16  # a sixteenth of all slots is refilled together: 3 % of them stand empty for it
_RESERVE = 0.02  # of all pages kept for sequences in slots to grow into, when others are admitted

Ended = list[tuple[Sequence, FinishReason]]


@dataclass(eq=False, slots=True)
class _Seat:
    """A sequence in a slot. ``position`` of its last token once all launched steps are done, if it does not end."""

    sequence: Sequence
    slot: int
    pages: list[int]
    position: int
    capacity: int = 0
    """Tokens that its pages hold; without limit if they hold all that it can get."""
    taken: bool = True

    def hold(self, pages: list[int]) -> None:
        """Take further pages."""
        self.pages += pages
        request, self.capacity = self.sequence.request, len(self.pages) * PAGE
        if self.capacity >= len(request.prompt_ids) + request.sampling.max_tokens:
            self.capacity = sys.maxsize


@dataclass(slots=True)
class _Prefix:
    """A prompt in the cache: its pages, of which the last may be full in part, and its logits (1, V)."""

    pages: list[int]
    logits: Tensor


@dataclass(slots=True)
class _Look:
    """How slots stood after a chunk of steps: ``status`` and ``count`` on the host once ``done`` says so."""

    seats: list[_Seat]
    status: Tensor
    count: Tensor
    done: torch.cuda.Event | None

    def wait(self) -> None:
        if self.done is not None:
            self.done.synchronize()


@dataclass
class PagedBatch:
    """Sequences over ``pages`` pages and at most ``slots`` slots."""

    decoder: Decoder
    cache: PagedCache
    slots: int
    max_len: int
    prefill_tokens: int
    counters: Counters
    preempted: list[Sequence] = field(default_factory=list)
    """Put out of their slots for want of pages; they go on where they were, when they are admitted again."""

    def __post_init__(self) -> None:
        most = pages_for(self.max_len)
        if self.cache.pages < most + 2:
            raise EngineError(
                f"the KV cache has room for {(self.cache.pages - 1) * PAGE} tokens, less than one sequence of max_len="
                f"{self.max_len}; raise rollout.gpu_memory_utilization or lower data.max_response_length"
            )
        self.device = self.cache.data.device
        self._on_gpu = self.device.type == "cuda"
        self._reader = torch.cuda.Stream(self.device) if self._on_gpu else None
        self._state = SlotState.empty(self.slots, self.max_len, self.device)
        self._prefill = Prefill(self.decoder, self.cache, self.counters, self.prefill_tokens)
        self._steps = Steps(self.decoder, self.cache, self._state, slots=self.slots, max_pages=most)
        self.forget()

    @property
    def live(self) -> list[_Seat]:
        return self._seats

    def forget(self) -> None:
        """Empty all slots."""
        self._state.status.fill_(STOPPED)
        self._pool = PagePool(self.cache.pages)
        self._free_slots = list(range(self.slots - 1, -1, -1))
        self._seats: list[_Seat] = []
        self._prefixes: dict[tuple[int, ...], _Prefix] = {}
        self._look: _Look | None = None
        self._rows_changed = True
        self._ahead, self._others_wait = _STEPS_AHEAD, False
        self.preempted.clear()

    # --- admission ------------------------------------------------------------------------------------------------

    def admit(self, waiting: Waiting) -> list[Admitted]:
        """Take from ``waiting`` what has room in slots and pages, but not for the first few free slots: a prefill takes
        as long as a few steps, however few prompts it has."""
        self._others_wait = waiting.count > 0
        if self._seats and len(self._free_slots) < min(self.slots // _SLOTS_PER_PREFILL, waiting.count):
            return []
        admitted = self._admit(waiting)
        if not admitted and not self._seats and self._prefixes:
            # A prompt that was admitted in part keeps pages that one put out of its slot needs to go on
            for prefix in self._prefixes.values():
                self._pool.release(prefix.pages)
            self._prefixes.clear()
            admitted = self._admit(waiting)
        self._others_wait = waiting.count > 0
        return admitted

    def _admit(self, waiting: Waiting) -> list[Admitted]:
        room = self._pool.free - int(_RESERVE * self.cache.pages if self._seats else 0)

        def fits(context: tuple[int, ...], siblings: int) -> int:
            nonlocal room
            shared = 0 if context in self._prefixes else pages_for(len(context))
            count = max(0, min(siblings, room - shared))
            if count:
                room -= shared + count
            return count

        return waiting.take(len(self._free_slots), fits)

    def _take_in(self, admitted: list[Admitted]) -> None:
        """The prompts into the cache, the sequences into slots, and their first tokens."""
        new = [group.context_ids for group in admitted if group.context_ids not in self._prefixes]
        pages = [self._pool.take(pages_for(len(prompt))) for prompt in new]
        logits = self._prefill(new, pages)
        computed = {prompt: _Prefix(own, row) for prompt, own, row in zip(new, pages, logits, strict=True)}
        rows: list[Tensor] = []
        seats: list[_Seat] = []
        source: list[int] = []
        copies: list[tuple[int, int]] = []
        for group in admitted:
            prefix = computed.get(group.context_ids) or self._prefixes[group.context_ids]
            source += [len(rows)] * len(group.sequences)
            rows.append(prefix.logits)
            seats += self._seat(group, prefix, copies)
            if group.more:
                self._prefixes[group.context_ids] = _Prefix(prefix.pages, prefix.logits.clone())
            else:
                self._prefixes.pop(group.context_ids, None)
        if copies:
            self.cache.copy(*(self._up(pages, torch.int64) for pages in zip(*copies, strict=True)))
        self._write_state(seats)
        for seat in seats:
            seat.position += 1  # of the token that is drawn now
        self._seats += seats
        self._rows_changed = True
        merged = rows[0] if len(rows) == 1 else torch.cat(rows)
        self._draw(merged, self._up([seat.slot for seat in seats], torch.int32), seats, self._up(source, torch.int64))

    def _seat(self, group: Admitted, prefix: _Prefix, copies: list[tuple[int, int]]) -> list[_Seat]:
        """A slot for each of the group. Full pages of the prompt are shared; the last is copied if it is not full, but
        for the last sequence of all, which takes the prompt's own."""
        length = len(group.context_ids)
        full = length // PAGE
        shared, partial = prefix.pages[:full], prefix.pages[full:]
        seats = []
        for i, sequence in enumerate(group.sequences):
            heir = not group.more and i == len(group.sequences) - 1
            own = list(partial)
            if not heir:
                self._pool.share(shared)
                own = self._pool.take(len(partial))
                copies += zip(partial, own, strict=True)
            seat = _Seat(sequence, self._free_slots.pop(), [], length - 1)
            seat.hold(shared + own)
            seats.append(seat)
        return seats

    def _write_state(self, seats: list[_Seat]) -> None:
        state = self._state
        requests = [seat.sequence.request for seat in seats]
        numbers = torch.tensor(
            [
                [seat.position, len(seat.sequence.token_ids), request.sampling.max_tokens, signed(request.seed)]
                for seat, request in zip(seats, requests, strict=True)
            ]
        )
        stops = torch.full((len(seats), MOST_STOPS), -1)
        pages = torch.zeros(len(seats), max(len(seat.pages) for seat in seats), dtype=torch.int32)
        for row, seat in enumerate(seats):
            if seat.sequence.stops:
                stops[row, : len(seat.sequence.stops)] = torch.tensor(sorted(seat.sequence.stops))
            pages[row, : len(seat.pages)] = torch.tensor(seat.pages, dtype=torch.int32)
        slots = self._up([seat.slot for seat in seats], torch.int64)
        values = self._up(numbers)
        for i, column in enumerate((state.position, state.count, state.limit, state.seed)):
            column[slots] = values[:, i]
        state.stops[slots] = self._up(stops)
        state.temperature[slots] = self._up([request.sampling.temperature for request in requests], torch.float32)
        state.table[slots, : pages.shape[1]] = self._up(pages)
        state.status[slots] = LIVE

    # --- steps ----------------------------------------------------------------------------------------------------

    def step(self, admitted: list[Admitted]) -> Ended:
        """Admit, launch steps, and see how the steps launched before ended."""
        if admitted:
            self._take_in(admitted)
        self._ahead = _STEPS_AHEAD_OF_A_PREFILL if self._others_wait else _STEPS_AHEAD
        ended = self._make_room()
        before = self._look
        self._look = self._launch()
        return ended + (self._see(before) if before is not None else [])

    def _launch(self) -> _Look:
        seats = list(self._seats)
        if self._rows_changed:
            self._steps.set_rows(self._up([seat.slot for seat in seats], torch.int32))
            self._rows_changed = False
        drawn = not any(_filtered(seat.sequence.request.sampling) for seat in seats)
        for _ in range(self._ahead if seats else 0):
            logits = self._steps.run(len(seats), drawn=drawn)
            if not drawn:
                self._draw(logits, self._steps.rows[: len(seats)], seats, None)
        for seat in seats:
            seat.position += self._ahead
        self.counters.forwards += self._ahead
        self.counters.decode_forwards += self._ahead
        return self._record(seats)

    def _draw(self, logits: Tensor, slots: Tensor, seats: list[_Seat], source: Tensor | None) -> None:
        settings = [seat.sequence.request.sampling for seat in seats]
        if not any(_filtered(one) for one in settings):
            draw(logits, slots, self._state, source)
            return
        rows = logits if source is None else logits[source]
        random = uniforms(self._state.seed[slots], self._state.count[slots])
        take(*sample(rows, settings, random), slots, self._state)

    def _record(self, seats: list[_Seat]) -> _Look:
        status, count = (x.to("cpu", non_blocking=True, copy=True) for x in (self._state.status, self._state.count))
        done = None
        if self._on_gpu:
            done = torch.cuda.Event()
            done.record()
        return _Look(seats, status, count, done)

    def _see(self, look: _Look) -> Ended:
        """The sequences that had ended by then, out of their slots."""
        look.wait()
        status = look.status.tolist()
        over = [seat for seat in look.seats if seat.taken and status[seat.slot] != LIVE]
        self._read(over, look.count)
        for seat in over:
            if status[seat.slot] == BROKEN:
                broken = seat.sequence.request.id
                raise EngineError(f"the logits of request {broken!r} are not finite: the policy's weights are broken")
        return [(seat.sequence, REASONS[status[seat.slot]]) for seat in over]

    def _read(self, seats: list[_Seat], count: Tensor) -> None:
        """What was sampled in these slots, whose steps are done, into their sequences; the slots are free then."""
        if not seats:
            return
        with torch.cuda.stream(self._reader):
            slots = [seat.slot for seat in seats]
            longest = int(count[slots].max())
            index = self._up(slots, torch.int64)
            tokens = self._state.out_tokens[index, :longest].tolist()
            log_probs = self._state.out_log_probs[index, :longest].tolist()
        for seat, ids, values in zip(seats, tokens, log_probs, strict=True):
            sequence, end = seat.sequence, int(count[seat.slot])
            new = slice(len(sequence.token_ids), end)
            self.counters.sampled_tokens += end - new.start
            self.counters.decode_tokens += max(0, end - new.start - 1)
            sequence.token_ids += ids[new]
            sequence.log_probs += values[new]
        self._leave(seats)

    def _leave(self, seats: list[_Seat]) -> None:
        for seat in seats:
            seat.taken = False
            self._pool.release(seat.pages)
            self._free_slots.append(seat.slot)
        self._seats = [seat for seat in self._seats if seat.taken]
        self._rows_changed = True

    # --- pages ----------------------------------------------------------------------------------------------------

    def _make_room(self) -> Ended:
        """Pages for the tokens of the next steps. If there are too few: first what has ended lets go of its own, then
        the sequences that came last wait again."""
        ended: Ended = []
        if self._missing() > self._pool.free:
            ended = self._settle()
            while self._missing() > self._pool.free:
                self._preempt(self._seats[-1])
        where: list[int] = []
        pages: list[int] = []
        width = self._state.table.shape[1]
        for seat in self._growing():
            held = len(seat.pages)
            new = self._pool.take(pages_for(seat.position + self._ahead) - held)
            where += range(seat.slot * width + held, seat.slot * width + held + len(new))
            pages += new
            seat.hold(new)
        if where:
            self._state.table.view(-1)[self._up(where, torch.int64)] = self._up(pages, torch.int32)
        return ended

    def _growing(self) -> list[_Seat]:
        """Those whose pages do not hold the tokens of the next steps."""
        ahead = self._ahead
        return [seat for seat in self._seats if seat.position + ahead > seat.capacity]

    def _missing(self) -> int:
        return sum(pages_for(seat.position + self._ahead) - len(seat.pages) for seat in self._growing())

    def _settle(self) -> Ended:
        """Wait for all steps; what has ended leaves."""
        self._look = None
        return self._see(self._record(list(self._seats)))

    def _preempt(self, seat: _Seat) -> None:
        """All steps are done. Its tokens so far are kept; admitted again it is prefilled with them."""
        self._state.status[seat.slot] = STOPPED
        self._read([seat], self._state.count.cpu())
        self.preempted.append(seat.sequence)

    def drop(self, ids: frozenset[str]) -> list[Sequence]:
        """Take the sequences of these requests out of their slots, with the tokens that they have."""
        dropped = [seat for seat in self._seats if seat.sequence.request.id in ids]
        if dropped:
            look = self._record(dropped)
            look.wait()
            self._state.status[self._up([seat.slot for seat in dropped], torch.int64)] = STOPPED
            self._read(dropped, look.count)
        return [seat.sequence for seat in dropped]

    def _up(self, values: Any, dtype: torch.dtype | None = None) -> Tensor:
        """Numbers to the device, without waiting for it."""
        return moved(values if isinstance(values, Tensor) else torch.tensor(values, dtype=dtype), self.device)


def _filtered(sampling: SamplingParams) -> bool:
    """Whether top-k or top-p cut the distribution, which the step's own sampling does not do."""
    return sampling.temperature > 0 and (sampling.top_p < 1 or sampling.top_k > 0)
