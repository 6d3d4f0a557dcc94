"""The native engine against ``model.generate`` on a CPU: equal lengths, and ragged groups.

    python benchmarks/native_cpu.py MODEL_DIR --pairs 5 --out docs/benchmarks/native_cpu.json

Both sides run the same Hugging Face module in fp32 with the same threads, sample at temperature 1 and return the
log-probability of every sampled token. Runs are interleaved (native, generate, native, generate, ...), and the ratio is
that of the medians. A rate is useful response tokens per second of the whole call, prefill included.

equal    32 distinct prompts of 64 tokens, 64 new tokens each.
ragged   32 prompts of 64 tokens x 8 samples, response lengths spread evenly over 4..64 in a fixed random order. A
         length stands for where a sample would have stopped. ``generate`` goes on until the longest row of its batch
         is done, and only useful tokens count for it; its batches are made of whole groups (num_return_sequences=8),
         and the best of the batch sizes tried stands for it.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers

from laurel.rollout.native.engine import NativeEngine
from laurel.types import Request, SamplingParams

PROMPT, NEW, SHORTEST = 64, 64, 4


def prompts(count: int, vocab: int) -> list[tuple[int, ...]]:
    chosen = random.Random(0)
    return [tuple(chosen.randrange(100, vocab) for _ in range(PROMPT)) for _ in range(count)]


def ragged_lengths(count: int) -> list[int]:
    lengths = [SHORTEST + i * (NEW - SHORTEST + 1) // count for i in range(count)]
    random.Random(1).shuffle(lengths)
    return lengths


def native(engine: NativeEngine, asked: list[tuple[int, ...]], lengths: list[int], run: int) -> float:
    """Useful tokens per second of one call."""
    requests = [
        Request(f"{run}/{i}", prompt, SamplingParams(max_tokens=length, ignore_eos=True), seed=run * 10**6 + i)
        for i, (prompt, length) in enumerate(zip(asked, lengths, strict=True))
    ]
    start = time.perf_counter()
    completions = [future.result() for future in engine.submit_all(requests)]
    seconds = time.perf_counter() - start
    assert [len(one.token_ids) for one in completions] == lengths
    assert all(len(one.log_probs or ()) == len(one.token_ids) for one in completions)
    return sum(lengths) / seconds


def generate(
    module: Any, asked: list[tuple[int, ...]], lengths: list[int], samples: int, batch: int, run: int
) -> float:
    """Useful tokens per second of one call for each ``batch`` rows, ``samples`` of them per prompt."""
    torch.manual_seed(run)
    start = time.perf_counter()
    for first in range(0, len(asked), batch):
        rows = asked[first : first + batch]
        out = module.generate(
            torch.tensor(rows[::samples]),
            attention_mask=torch.ones(len(rows) // samples, PROMPT, dtype=torch.int64),
            num_return_sequences=samples,
            max_new_tokens=max(lengths[first : first + batch]),
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            eos_token_id=None,
            pad_token_id=0,
            output_scores=True,
            return_dict_in_generate=True,
        )
        scores = module.compute_transition_scores(out.sequences, out.scores, normalize_logits=True)
        assert scores.shape[0] == len(rows)
    return sum(lengths) / (time.perf_counter() - start)


def interleave(sides: dict[str, Callable[[int], float]], pairs: int, name: str) -> dict[str, list[float]]:
    rates: dict[str, list[float]] = {side: [] for side in sides}
    for run in range(pairs):
        for side, call in sides.items():
            load = Path("/proc/loadavg").read_text().split()[0] if Path("/proc/loadavg").exists() else "?"
            rates[side].append(call(run))
            print(f"{name} run {run} {side}: {rates[side][-1]:.1f} tok/s (load before: {load})", flush=True)
    return rates


def summary(name: str, rates: dict[str, list[float]]) -> dict[str, Any]:
    medians = {side: statistics.median(values) for side, values in rates.items()}
    peers = {side: value for side, value in medians.items() if side != "native"}
    best = max(peers, key=lambda side: peers[side])
    ratio = medians["native"] / peers[best]
    print(
        f"{name}: native {medians['native']:.1f} tok/s, {best} {peers[best]:.1f} tok/s, ratio {ratio:.2f}", flush=True
    )
    return {"rates": rates, "medians": medians, "best_peer": best, "ratio": ratio}


def machine() -> dict[str, Any]:
    cpu = platform.processor()
    if Path("/proc/cpuinfo").exists():
        names = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
        cpu = f"{len(names)} x {names[0].split(':')[1].strip()}" if names else cpu
    return {
        "cpu": cpu,
        "capability": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="Hugging Face folder")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--work", nargs="+", choices=["equal", "ragged"], default=["equal", "ragged"])
    parser.add_argument("--prompts", type=int, default=32)
    parser.add_argument("--samples", type=int, default=8, help="samples per prompt of the ragged work")
    parser.add_argument("--slots", type=int, default=128, help="slots of the native engine for the ragged work")
    parser.add_argument("--batches", type=int, nargs="+", default=[32, 64, 256], help="batch sizes tried for generate")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    report: dict[str, Any] = {"machine": machine(), "arguments": {k: str(v) for k, v in vars(args).items()}}
    print(json.dumps(report["machine"]), flush=True)
    module = transformers.AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32).eval()
    asked = prompts(args.prompts, module.config.vocab_size)
    if "equal" in args.work:
        engine = NativeEngine(module, max_slots=len(asked), max_len=PROMPT + NEW, stop_token_ids=[])
        lengths = [NEW] * len(asked)
        sides: dict[str, Callable[[int], float]] = {
            "native": lambda run: native(engine, asked, lengths, run),
            f"generate batch {len(asked)}": lambda run: generate(module, asked, lengths, 1, len(asked), run),
        }
        report["equal"] = summary("equal", interleave(sides, args.pairs, "equal"))
        engine.close()
    if "ragged" in args.work:
        grouped = [prompt for prompt in asked for _ in range(args.samples)]
        spread = ragged_lengths(len(grouped))
        engine = NativeEngine(module, max_slots=args.slots, max_len=PROMPT + NEW, stop_token_ids=[])
        sides = {"native": lambda run: native(engine, grouped, spread, run)}
        for batch in args.batches:
            sides[f"generate batch {batch}"] = lambda run, batch=batch: generate(
                module, grouped, spread, args.samples, batch, run
            )
        report["ragged"] = summary("ragged", interleave(sides, args.pairs, "ragged"))
        report["ragged"]["native_occupancy"] = engine.counters.occupancy
        engine.close()
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
