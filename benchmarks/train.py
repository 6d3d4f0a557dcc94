"""How fast a batch is learned from: our learner against transformers with TRL's padded loop, on work G's batch.

    python -m benchmarks.train --out train.jsonl
    python -m benchmarks.train --only ours --budgets product 32768 65536 --set actor_rollout_ref.actor.optim.lr=1e-6
    python -m benchmarks.train --model tiny                  # seconds on a CPU

Tokens are those of all rows, prompts counted in each, for both sides. MFU counts the FLOPs that the work needs (prompts
that a group shares once, only responses through the head, no embedding look-up) over the GPU's data-sheet peak; the
peer's is its share of the same FLOPs. Warm-up is not counted. Each side is a process of its own with a time limit.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.child import measure, run
from benchmarks.record import Records, Row, machine, table

OURS = "benchmarks.train_ours"
PEER = "benchmarks.train_padded"


def summary(records: Records, size: str) -> str:
    """The update of every setting of both sides, then our pass for log-probabilities, then what failed."""
    updates = _fastest(row for row in records.of("update") if row["size"] == size)
    peers = [row["tokens_per_s"] for row in updates if row["side"] != "ours"]
    known = [row["mfu"] / row["tokens_per_s"] for row in updates if row.get("mfu")]
    shown = [
        _line(row, row["tokens_per_s"] / max(peers) if peers and row["side"] == "ours" else None, known)
        for row in updates
    ]
    passes = [_line(row, None, []) for row in _fastest(row for row in records.of("log_probs") if row["size"] == size)]
    head = ["side", "setting", "tokens/s", "seconds", "MFU", "GiB", "times best peer"]
    parts = ["update", table(head, shown), "log-probabilities alone", table(head, passes)]
    return "\n\n".join([*parts, *records.problems()])


def _fastest(rows: Iterable[Row]) -> list[Row]:
    """The fastest of each side, model and setting, if calls before this one measured it too."""
    found: dict[tuple[str, ...], Row] = {}
    for row in rows:
        key = (row["model"], row["side"], row["setting"])
        if key not in found or row["median_s"] < found[key]["median_s"]:
            found[key] = row
    return list(found.values())


def _line(row: Row, times: float | None, mfu_per_rate: list[float]) -> list[Any]:
    share = row.get("mfu") or (row["tokens_per_s"] * mfu_per_rate[0] if mfu_per_rate else None)
    return [row["side"], row["setting"], row["tokens_per_s"], row["median_s"], share, row["peak_gib"], times]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="0.5b", help="tiny, 0.5b, 7b or a config.json")
    parser.add_argument("--only", choices=["ours", "padded"])
    parser.add_argument("--size", choices=["full", "small"], help="default full, or small for tiny")
    parser.add_argument("--budgets", nargs="+", default=["product"], help="of ours: tokens of one forward and backward")
    parser.add_argument("--rows", nargs="+", help="of the peer: micro-batch sizes; default 8 16 32 64, or 4 for small")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="further settings of ours")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--limit", type=float, default=240, help="seconds for each side")
    parser.add_argument("--device", choices=["cpu", "cuda"])
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "laurel-benchmarks")
    parser.add_argument("--out", type=Path, help="JSON lines, added to; the table covers all of it")
    parser.add_argument("--log-dir", type=Path, help="what the sides print; default: beside --out")
    args = parser.parse_args()
    args.size = args.size or ("small" if args.model == "tiny" else "full")
    args.log_dir = args.log_dir or (args.out.parent if args.out else Path(tempfile.mkdtemp()))
    args.log_dir.mkdir(parents=True, exist_ok=True)
    args.folder = args.folder.absolute()
    records = Records(args.out)
    records.show("run", program="train", arguments=vars(args), **machine())
    same = ["--model", args.model, "--size", args.size, *(["--device", args.device] if args.device else [])]
    try:
        if args.only != "padded":
            ours(records, args, same)
        if args.only != "ours":
            rows = args.rows or (["4"] if args.size == "small" else ["8", "16", "32", "64"])
            about = {"side": "padded", "size": args.size, "model": args.model}
            log = args.log_dir / "train-padded.log"
            measure(records, PEER, [*same, "--rows", *rows], limit_s=args.limit, log=log, about=about)
    finally:
        print("\n" + summary(records, args.size), flush=True)


def ours(records: Records, args: argparse.Namespace, same: list[str]) -> None:
    folder: list[str] = []
    write = [sys.executable, "-m", "benchmarks.shapes", args.model, str(args.folder)]
    made = run(write, limit_s=180, on_line=folder.append)
    if made.why:
        records.show("failed", side="ours", why=f"the model's folder: {made.why}", tail=made.tail)
        return
    chosen = ["--repeats", str(args.repeats), "--budgets", *args.budgets, *(["--set", *args.set] if args.set else [])]
    about = {"side": "ours", "size": args.size, "model": args.model}
    log = args.log_dir / "train-ours.log"
    measure(records, OURS, [folder[-1], *same, *chosen], limit_s=args.limit, log=log, about=about)


if __name__ == "__main__":
    main()
