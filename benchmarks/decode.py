"""How fast responses are sampled: the native engine against vLLM, on the same prompts and lengths.

    python -m benchmarks.decode --out decode.jsonl                      # ours, then vLLM with each setting
    python -m benchmarks.decode --only vllm --settings 512 --work G     # a part of it; the same --out adds up
    python -m benchmarks.decode --model tiny --out /tmp/decode.jsonl    # seconds on a CPU; vLLM is skipped

Works (benchmarks/works.py): G is GRPO's rollout, S has ragged responses on fewer slots, V is a greedy validation, L a
7B shape. Every side and setting is a process of its own with a time limit; each timing is printed and written at once.
The table takes the best repeat of each, with its share of what the hardware allows (benchmarks/floor.py). The ratio is
ours over the best vLLM that reports log-probabilities as we do, and beside it over the best that does not (a greedy
validation needs none). Ours always reports them.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import floor
from benchmarks.child import measure, run
from benchmarks.decode_vllm import LOG_PROBS, SETTINGS
from benchmarks.record import Records, Row, installed, machine, table
from benchmarks.shapes import fields_of, sizes_of
from benchmarks.works import Work, same_slots, works


def floor_s(work: Work, model: str, slots: int) -> float:
    """Seconds that the hardware needs for the work at least, on an H200."""
    sizes = sizes_of(fields_of(model))
    sequences = [(work.prompt, length) for length in work.lengths()]
    return floor.rollout(sizes, [work.prompt] * work.prompts, sequences, slots)


def best(rows: list[Row]) -> list[Row]:
    """The fastest faultless repeat of each (work, side, setting, log-probs), in the order in which they came."""
    found: dict[tuple[Any, ...], Row] = {}
    for row in rows:
        key = (row["work"], row["model"], row["side"], row["setting"], row["log_probs"])
        if not row["faults"] and (key not in found or row["tokens_per_s"] > found[key]["tokens_per_s"]):
            found[key] = row
    return sorted(found.values(), key=lambda row: row["work"])


def ratio(row: Row, rows: list[Row], *, told: bool) -> float | None:
    """Our rate over the peer's best on the same work and model, of runs that report log-probabilities or do not."""
    if row["side"] != "ours":
        return None
    same = [other for other in rows if other["side"] != "ours" and other["work"] == row["work"]]
    rates = [
        other["tokens_per_s"]
        for other in same
        if other["model"] == row["model"] and (other["log_probs"] != "none") == told
    ]
    return row["tokens_per_s"] / max(rates) if rates else None


def summary(records: Records, size: str) -> str:
    """Tables of everything in the records of this size: rates, then starts, then what failed."""
    chosen = works(size)
    chosen = {**chosen, **{same.name: same for same in map(same_slots, chosen.values())}}
    rows = best([row for row in records.of("decode") if row["size"] == size])
    head = ["work", "model", "side", "log-probs", "tokens/s", "seconds", "occupancy"]
    head += ["times vLLM", "(no log-probs)", "floor tok/s", "of it"]
    starts = [
        [row[key] for key in ("side", "setting", "model")]
        + [row.get("caches", ""), row["engine_to_first_token_s"], row["process_to_first_token_s"]]
        for row in records.of("start")
        if row["size"] == size
    ]
    parts = [
        table(head, [_line(row, rows, chosen[row["work"]]) for row in rows]),
        table(["start", "setting", "model", "caches", "engine to token s", "process to token s"], starts),
    ]
    return "\n\n".join([*parts, *_ragged(rows), *records.problems()])


def _line(row: Row, rows: list[Row], work: Work) -> list[Any]:
    least = floor_s(work, row["model"], row.get("slots") or work.slots)
    measured = [row["log_probs"], row["tokens_per_s"], row["seconds"], row.get("occupancy")]
    ratios = [ratio(row, rows, told=told) for told in (True, False)]
    side = f"{row['side']} {row['setting']}".strip()
    return [row["work"], row["model"], side, *measured, *ratios, row["tokens"] / least, least / row["seconds"]]


def _ragged(rows: list[Row]) -> list[str]:
    """How near refilled slots come to slots that are always busy, both on the same engine."""
    ours = {row["work"]: row["tokens_per_s"] for row in rows if row["side"] == "ours"}
    pairs = [(name, ours[f"{name}="]) for name in ours if f"{name}=" in ours]
    return [
        f"ours: {name} gives {ours[name] / equal:.2f} of the rate of equal responses on its slots"
        for name, equal in pairs
    ]


def ours(records: Records, args: argparse.Namespace, work: list[str], model: str, caches: Path) -> None:
    """Our side once, with empty compile caches unless ``--caches`` has some; then ``--starts`` processes that only
    bring an engine to its first token, with filled ones."""
    arguments = ["--model", model, "--size", args.size, "--repeats", str(args.repeats)]
    arguments += ["--prefill-tokens", str(args.prefill_tokens)]
    arguments += ["--slots", str(args.slots)] if args.slots else []
    arguments += ["--device", args.device] if args.device else []
    extra = {"TORCHINDUCTOR_CACHE_DIR": str(caches / "inductor"), "TRITON_CACHE_DIR": str(caches / "triton")}
    starts = args.starts if model == args.model else 0
    for turn in range(1 + starts):
        state = "filled" if caches.exists() else "empty"
        measure(
            records,
            "benchmarks.decode_ours",
            [*arguments, "--work", *(work if turn == 0 else [])],
            limit_s=args.limit,
            log=args.log_dir / f"decode-ours-{model.replace('/', '_')}.log",
            about={"side": "ours", "setting": "", "size": args.size, "caches": state, "model": model},
            extra=extra,
        )
        caches.mkdir(parents=True, exist_ok=True)


def vllm(records: Records, args: argparse.Namespace, work: list[str], model: str) -> None:
    folder: list[str] = []
    made = run(
        [sys.executable, "-m", "benchmarks.shapes", model, str(args.folder), "--no-weights"],
        limit_s=120,
        on_line=folder.append,
    )
    if made.why:
        records.show("failed", side="vllm", why=f"the model's folder: {made.why}", tail=made.tail)
        return
    same = ["--model", model, "--size", args.size, "--work", *work]
    same += ["--repeats", str(args.peer_repeats), "--log-probs", *args.log_probs]
    for setting in args.settings:
        measure(
            records,
            "benchmarks.decode_vllm",
            [folder[-1], *same, "--setting", setting],
            limit_s=args.limit,
            log=args.log_dir / f"decode-vllm-{setting}.log",
            about={"side": "vllm", "setting": setting, "size": args.size, "model": model},
        )


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="0.5b", help="shape of G, S and V: tiny, 0.5b, 7b or a config.json")
    parser.add_argument("--large", help="shape of L; default 7b, or tiny if the model is")
    parser.add_argument("--work", nargs="+", choices=["G", "S", "V", "L"], default=["G", "S", "V"])
    parser.add_argument("--only", choices=["ours", "vllm"])
    parser.add_argument("--settings", nargs="+", choices=SETTINGS, default=["default", "512", "1024"], help="of vLLM")
    parser.add_argument("--log-probs", nargs="+", choices=LOG_PROBS, default=list(LOG_PROBS), help="vLLM's forms")
    parser.add_argument("--size", choices=["full", "small"], help="default full, or small for tiny")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--peer-repeats", type=int, default=1)
    parser.add_argument("--starts", type=int, default=1, help="further processes that only start our engine")
    parser.add_argument("--slots", type=int, help="slots of our engine; default: the work's")
    parser.add_argument("--prefill-tokens", type=int, default=8192, help="of one forward of our engine")
    parser.add_argument("--limit", type=float, default=300, help="seconds for each side and setting")
    parser.add_argument("--device", choices=["cpu", "cuda"], help="of our side; default: a GPU if there is one")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "laurel-benchmarks")
    parser.add_argument("--caches", type=Path, help="compile caches of our side; default: new and empty ones")
    parser.add_argument("--out", type=Path, help="JSON lines, added to; the table covers all of it")
    parser.add_argument("--log-dir", type=Path, help="what the sides print; default: beside --out")
    return parser


def main() -> None:
    args = arguments().parse_args()
    tiny = args.model == "tiny"
    args.size = args.size or ("small" if tiny else "full")
    args.large = args.large or ("tiny" if tiny else "7b")
    args.log_dir = args.log_dir or (args.out.parent if args.out else Path(tempfile.mkdtemp()))
    args.log_dir.mkdir(parents=True, exist_ok=True)
    args.folder = args.folder.absolute()
    caches = args.caches.absolute() if args.caches else Path(tempfile.mkdtemp()) / "caches"
    records = Records(args.out)
    records.show("run", program="decode", arguments=vars(args), **machine())
    parts = [
        ([name for name in args.work if name != "L"], args.model),
        ([n for n in args.work if n == "L"], args.large),
    ]
    try:
        for work, model in parts:
            if work and args.only != "vllm":
                ours(records, args, work, model, caches)
        if args.only != "ours" and installed("vllm") is None:
            records.show("skipped", side="vllm", why="vllm is not installed here")
            parts = []
        for work, model in parts:
            if work and args.only != "ours":
                vllm(records, args, work, model)
    finally:
        print("\n" + summary(records, args.size), flush=True)


if __name__ == "__main__":
    main()
