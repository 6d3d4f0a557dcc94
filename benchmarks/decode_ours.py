"""Our side of benchmarks.decode: the native engine on random weights, in one process. Prints a row per timed call.

The first engine of the process gives the time from its start to its first token; every work then warms up with a
sixteenth of its tokens, which is not counted, and is timed ``--repeats`` times. A time runs from handing the requests
over to the last finished completion, with the log-probability of every sampled token in it.
"""

from __future__ import annotations

import argparse
import gc
import math
import time
from collections.abc import Sequence
from typing import Any

import torch

from benchmarks.record import born, device, peak_gib, show
from benchmarks.shapes import default_device, fields_of, random_module
from benchmarks.works import Asked, Work, same_slots, warm_up, works
from laurel.models import attention as packed
from laurel.rollout.native.engine import NativeEngine
from laurel.types import Completion, Request, SamplingParams


def requests_of(asked: Sequence[Asked], run: str, *, greedy: bool) -> list[Request]:
    return [
        Request(
            f"{run}/{i}",
            one.prompt,
            SamplingParams(max_tokens=one.tokens, temperature=0.0 if greedy else 1.0, ignore_eos=True),
            seed=i,
            group=f"{run}/{one.group}",
        )
        for i, one in enumerate(asked)
    ]


class Bench:
    """The module and at most one engine on it, remade when a work wants other slots or a longer sequence."""

    def __init__(self, model: str, *, device: str, prefill_tokens: int, slots: int | None):
        self.model, self.device, self.slots, self.prefill_tokens = model, device, slots, prefill_tokens
        packed.register()
        self.fields = fields_of(model)
        dtype = torch.bfloat16 if device == "cuda" else torch.float32
        self.module = random_module(self.fields, device=device, dtype=dtype, attention=packed.NAME)
        self.engine: NativeEngine | None = None
        self.calls = 0

    def engine_for(self, work: Work) -> NativeEngine:
        """An engine with the work's slots; the time until it has given a first token is shown when it is made."""
        slots = self.slots or work.slots
        if self.engine is not None and self.engine.max_slots == slots and self.engine.max_len >= work.longest:
            return self.engine
        self.close()
        start = time.perf_counter()
        self.engine = NativeEngine(
            self.module,
            max_slots=slots,
            max_len=work.longest,
            stop_token_ids=[2],
            prefill_tokens=self.prefill_tokens,
            dtype=next(self.module.parameters()).dtype,
            device=self.device,
        )
        self.call([Asked(0, work.prompt_ids(self.fields["vocab_size"])[0], 1)], greedy=False)
        show(
            "start",
            side="ours",
            model=self.model,
            first_in_process=self.calls == 1,
            **({} if self.calls == 1 else {"caches": "same process"}),
            slots=slots,
            max_len=work.longest,
            engine_to_first_token_s=round(time.perf_counter() - start, 3),
            process_to_first_token_s=round(time.time() - born(), 2) if self.calls == 1 else None,
        )
        return self.engine

    def call(self, asked: Sequence[Asked], *, greedy: bool) -> tuple[float, list[Completion]]:
        """Seconds of one call of the engine, and what it gave."""
        assert self.engine is not None
        self.calls += 1
        requests = requests_of(asked, str(self.calls), greedy=greedy)
        start = time.perf_counter()
        completions = [future.result() for future in self.engine.submit_all(requests)]
        return time.perf_counter() - start, completions

    def close(self) -> None:
        if self.engine is not None:
            self.engine.close()
            self.engine = None
            gc.collect()
            if self.device == "cuda":
                torch.cuda.empty_cache()


def faults(asked: Sequence[Asked], completions: Sequence[Completion]) -> list[str]:
    """What makes a timing worthless: missing tokens, missing or impossible log-probabilities."""
    found = []
    short = sum(len(done.token_ids) != one.tokens for one, done in zip(asked, completions, strict=True))
    if short:
        found.append(f"{short} of {len(asked)} responses have another length than was asked for")
    unsaid = sum(done.log_probs is None or len(done.log_probs) != len(done.token_ids) for done in completions)
    if unsaid:
        found.append(f"{unsaid} responses lack log-probabilities")
    elif not all(math.isfinite(x) and x <= 1e-3 for done in completions for x in done.log_probs or ()):
        found.append("some log-probabilities are above 0 or not finite")
    return found


def timed(bench: Bench, work: Work, repeats: int) -> list[dict[str, Any]]:
    """A row for each repeat, shown as it comes."""
    engine = bench.engine_for(work)
    asked = work.asked(bench.fields["vocab_size"])
    warm_s, _ = bench.call(warm_up(asked), greedy=work.greedy)
    rows = []
    for repeat in range(repeats):
        before = counted(engine)
        seconds, completions = bench.call(asked, greedy=work.greedy)
        tokens = sum(len(done.token_ids) for done in completions)
        rows.append(
            show(
                "decode",
                side="ours",
                setting="",
                work=work.name,
                model=bench.model,
                log_probs="returned",
                repeat=repeat,
                warm_up_s=round(warm_s, 2),
                seconds=round(seconds, 5),
                tokens=tokens,
                tokens_per_s=round(tokens / seconds, 1),
                slots=engine.max_slots,
                occupancy=occupancy(before, counted(engine), engine.max_slots),
                peak_gib=peak_gib(),
                faults=faults(asked, completions),
            )
        )
    return rows


def counted(engine: NativeEngine) -> tuple[int, int]:
    """Tokens decoded and steps that decoded, since the engine began."""
    return engine.counters.decode_tokens, engine.counters.decode_forwards


def occupancy(before: tuple[int, int], after: tuple[int, int], slots: int) -> float | None:
    """Mean share of the slots that decoded in a step. Example: 30 tokens in 10 steps on 4 slots: 0.75."""
    tokens, steps = after[0] - before[0], after[1] - before[1]
    return round(tokens / (steps * slots), 4) if steps else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="0.5b")
    parser.add_argument(
        "--work", nargs="*", default=["G", "S", "V"], help="none: only the start of an engine, as for G"
    )
    parser.add_argument("--size", choices=["full", "small"], default="full")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--slots", type=int, help="slots of the engine; default: the work's")
    parser.add_argument("--prefill-tokens", type=int, default=8192)
    parser.add_argument("--device", choices=["cpu", "cuda"])
    args = parser.parse_args()
    bench = Bench(
        args.model, device=args.device or default_device(), prefill_tokens=args.prefill_tokens, slots=args.slots
    )
    show("device", side="ours", device=device(), prefill_tokens=args.prefill_tokens)
    chosen = works(args.size)
    if not args.work:
        bench.engine_for(chosen["G"])
    # Works that one engine serves follow each other
    for work in sorted((chosen[name] for name in args.work), key=lambda work: (-work.slots, -work.longest)):
        if work.median is not None:
            bench.engine_for(work)  # before the shorter one that it is compared with, which then shares it
            timed(bench, same_slots(work), args.repeats)
        timed(bench, work, args.repeats)
    bench.close()


if __name__ == "__main__":
    main()
