"""How long a whole training step takes: sampling, scoring, log-probabilities, update and new weights in the engine.

    python -m benchmarks.grpo_step --out step.jsonl                        # work G: ours, then every setting of TRL
    python -m benchmarks.grpo_step --only trl --settings tuned-512         # a part of it; the same --out adds up
    python -m benchmarks.grpo_step --work P                                # PPO; it has no peer here
    python -m benchmarks.grpo_step --model tiny                            # half a minute on a CPU

Ours goes through the product's own command (benchmarks/grpo_ours.py has its settings), the peer is TRL's GRPOTrainer
(benchmarks/grpo_trl.py). Both learn from random rewards on prompts of equal length, and every response has its full
length. Each run is a process of its own with a time limit, and every step is printed and written at once. The table
has the median of all steps but the first, which holds the warm-up.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import child, floor, grpo_ours
from benchmarks.grpo_trl import SETTINGS
from benchmarks.record import Records, installed, machine, table
from benchmarks.shapes import fields_of, sizes_of
from benchmarks.works import Work


def floor_s(work: Work, model: str) -> float:
    """Seconds that an H200 needs for rollout and update of G at least, prompts that a group shares computed once."""
    sizes = sizes_of(fields_of(model))
    sequences = [(work.prompt, length) for length in work.lengths()]
    responses = sum(work.lengths())
    flops = floor.training(
        sizes,
        computed=work.prompts * work.prompt + responses,
        scored=responses,
        lengths=[prompt + length for prompt, length in sequences],
    )
    return floor.rollout(sizes, [work.prompt] * work.prompts, sequences, work.slots) + flops / floor.FLOPS


def summary(records: Records, size: str) -> str:
    """Seconds of every step by work, side and setting; the ratio is the side's median over ours."""
    runs: dict[tuple[str, str, str, str], list[float]] = {}
    phases: dict[str, dict[str, float]] = {}
    for row in records.of("step"):
        if row["size"] == size:
            key = (row["work"], row["model"], row["side"], row["setting"])
            runs.setdefault(key, []) if row["step"] > 1 else runs.update({key: []})
            runs[key].append(row["seconds"])
            if row["side"] == "ours":
                phases[row["work"]] = row["metrics"]
    medians = {key: statistics.median(seconds[1:]) for key, seconds in runs.items() if len(seconds) > 1}
    shown = []
    for key, seconds in runs.items():
        work, model, side, setting = key
        own = medians.get((work, model, "ours", ""))
        least = floor_s(grpo_ours.WORKS[size][work], model) if work == "G" and side == "ours" else None
        times = medians[key] / own if key in medians and own else None
        steps = " ".join(f"{s:.2f}" for s in seconds)
        shown.append([work, model, f"{side} {setting}".strip(), steps, medians.get(key), times, least])
    head = ["work", "model", "side", "steps, seconds", "median after the first", "times ours", "floor s"]
    said = [f"ours, {work}, last step: {_phases(metrics)}" for work, metrics in phases.items()]
    return "\n\n".join([table(head, shown), *said, *records.problems()])


def _phases(metrics: dict[str, float]) -> str:
    return ", ".join(
        f"{key.removeprefix('timing_s/')} {value:.4g}"
        for key, value in metrics.items()
        if key.startswith(("timing_s/", "rollout/log_prob_diff", "perf/mfu", "perf/max_memory_allocated"))
    )


def trl(records: Records, args: argparse.Namespace, model_folder: Path) -> None:
    missing = [name for name in ("trl", "accelerate", "datasets") if installed(name) is None]
    same = ["--model", args.model, "--size", args.size, "--steps", str(args.peer_steps)]
    same += ["--rows", str(args.rows), "--gpu-share", str(args.gpu_share)]
    for setting in args.settings:
        lacks = missing or (["vllm"] if setting != "transformers" and installed("vllm") is None else [])
        about: dict[str, Any] = {"side": "TRL", "setting": setting, "work": "G", "model": args.model, "size": args.size}
        if lacks:
            records.show("skipped", **about, why=f"{', '.join(lacks)} not installed here")
            continue
        child.measure(
            records,
            "benchmarks.grpo_trl",
            [str(model_folder), *same, "--setting", setting],
            limit_s=args.limit,
            log=args.log_dir / f"step-trl-{setting}.log",
            about=about,
        )


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="0.5b", help="tiny, 0.5b, 7b or a config.json")
    parser.add_argument("--work", nargs="+", choices=["G", "P"], default=["G"])
    parser.add_argument("--only", choices=["ours", "trl"])
    parser.add_argument("--settings", nargs="+", choices=SETTINGS, default=list(SETTINGS), help="of TRL")
    parser.add_argument("--size", choices=["full", "small"], help="default full, or small for tiny")
    parser.add_argument("--steps", type=int, default=4, help="of ours, the first of which is the warm-up")
    parser.add_argument("--peer-steps", type=int, default=3)
    parser.add_argument("--rows", type=int, default=32, help="micro-batch of TRL's tuned settings")
    parser.add_argument("--gpu-share", type=float, default=0.4, help="of vLLM in TRL's tuned settings")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="further settings of ours")
    parser.add_argument("--limit", type=float, default=360, help="seconds for each run")
    parser.add_argument("--device", choices=["cpu", "cuda"], help="of ours; default: the product's choice")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "laurel-benchmarks")
    parser.add_argument("--out", type=Path, help="JSON lines, added to; the table covers all of it")
    parser.add_argument("--log-dir", type=Path, help="what the runs print; default: beside --out")
    return parser


def main() -> None:
    args = arguments().parse_args()
    args.size = args.size or ("small" if args.model == "tiny" else "full")
    args.log_dir = args.log_dir or (args.out.parent if args.out else Path(tempfile.mkdtemp()))
    args.log_dir.mkdir(parents=True, exist_ok=True)
    args.folder = args.folder.absolute()
    records = Records(args.out)
    records.show("run", program="grpo_step", arguments=vars(args), **machine())
    folder: list[str] = []
    write = [sys.executable, "-m", "benchmarks.shapes", args.model, str(args.folder)]
    made = child.run(write, limit_s=180, on_line=folder.append)
    if made.why:
        records.show("failed", side="all", why=f"the model's folder: {made.why}", tail=made.tail)
        sys.exit(1)
    try:
        for name in args.work if args.only != "trl" else []:
            grpo_ours.measure(
                records,
                name,
                model=args.model,
                size=args.size,
                model_folder=Path(folder[-1]),
                parent=args.folder,
                steps=args.steps,
                device=args.device,
                overrides=args.set,
                limit_s=args.limit,
                log=args.log_dir / f"step-ours-{name}.log",
            )
        if args.only != "ours" and "G" in args.work:
            trl(records, args, Path(folder[-1]))
    finally:
        print("\n" + summary(records, args.size), flush=True)


if __name__ == "__main__":
    main()
