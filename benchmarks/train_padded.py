"""The peer's side of benchmarks.train: the update as TRL makes it, on the same batch: rows padded to one length,
transformers' own forward with its default attention, gradients accumulated over micro-batches, fused AdamW.

    plain   logits of the whole response, as model(...) gives them
    fused   TRL's head, which gives log-probabilities in tiles (only where trl is installed)

Weights are bf16 without fp32 masters and nothing is recomputed, which is the fastest way to run it. A micro-batch size
is timed on a part of the batch, since every micro-batch costs the same; the first ones are not counted. Sizes that do
not fit in memory are said to. Imports nothing of ours.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from benchmarks.record import device, installed, peak_gib, show
from benchmarks.shapes import default_device, fields_of, random_module
from benchmarks.words import PAD
from benchmarks.works import Work, training_rows, works

LogProbs = Callable[[Any, Tensor, Tensor, int], Tensor]


def plain(module: Any, ids: Tensor, mask: Tensor, kept: int) -> Tensor:
    """(rows, kept): log-probabilities of the last ``kept`` tokens."""
    logits = module(input_ids=ids, attention_mask=mask, logits_to_keep=kept + 1, use_cache=False).logits[:, :-1]
    return -cross_entropy(logits.float().flatten(0, 1), ids[:, -kept:].flatten(), reduction="none").view(-1, kept)


def fused(module: Any, ids: Tensor, mask: Tensor, kept: int) -> Tensor:
    labels = ids.masked_fill(mask == 0, -100)
    labels[:, :-kept] = -100
    return module(input_ids=ids, attention_mask=mask, labels=labels, fused_lm_head=True, use_cache=False).log_probs[
        :, -kept:
    ]


def heads() -> dict[str, LogProbs]:
    return {"plain": plain, **({"fused": fused} if installed("trl") is not None else {})}


def padded(work: Work, vocab: int, place: str) -> tuple[Tensor, Tensor, int]:
    """Ids and mask (rows, prompt + longest response), prompts padded on the left and responses on the right."""
    rows = training_rows(work, vocab)
    kept = max(len(response) for _, _, response in rows)
    ids = torch.full((len(rows), work.prompt + kept), PAD)
    mask = torch.zeros_like(ids)
    for i, (_, prompt, response) in enumerate(rows):
        end = work.prompt + len(response)
        ids[i, work.prompt - len(prompt) : end] = torch.tensor(prompt + response)
        mask[i, work.prompt - len(prompt) : end] = 1
    return ids.to(place), mask.to(place), kept


def micro_step(
    module: Any, log_probs: LogProbs, ids: Tensor, mask: Tensor, advantages: Tensor, kept: int, tokens: int
) -> None:
    """Gradients of the clipped surrogate on a micro-batch whose old log-probabilities are its own."""
    found = log_probs(module, ids, mask, kept)
    scored = mask[:, -kept:]
    ratio = (found - found.detach()).exp()
    gain = torch.minimum(ratio * advantages[:, None], ratio.clamp(0.8, 1.2) * advantages[:, None])
    (-(gain * scored).sum() / tokens).backward()


def timed(
    module: Any, optimizer: Any, log_probs: LogProbs, batch: tuple[Tensor, Tensor, int], *, rows: int, most: int
) -> tuple[float, int]:
    """Seconds of one update over at most ``most`` rows in micro-batches of ``rows``, and how many rows that were."""
    ids, mask, kept = batch
    count = max(1, min(most, len(ids)) // rows)
    advantages = torch.randn(len(ids), device=ids.device)
    parts = [slice(i * rows, (i + 1) * rows) for i in range(count)]
    for warm in (True, False):
        chosen = parts[:2] if warm else parts
        _wait()
        start = time.perf_counter()
        for part in chosen:
            micro_step(module, log_probs, ids[part], mask[part], advantages[part], kept, count * rows * kept)
        torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        _wait()
    return time.perf_counter() - start, count * rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="0.5b")
    parser.add_argument("--size", choices=["full", "small"], default="full")
    parser.add_argument("--rows", type=int, nargs="+", default=[8, 16, 32, 64], help="micro-batch sizes")
    parser.add_argument("--most", type=int, default=512, help="rows of the batch that are timed")
    parser.add_argument("--device", choices=["cpu", "cuda"])
    args = parser.parse_args()
    place, work, fields = args.device or default_device(), works(args.size)["G"], fields_of(args.model)
    module = random_module(fields, device=place, dtype=torch.bfloat16 if place == "cuda" else torch.float32).train()
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-6, fused=place == "cuda")
    batch = padded(work, fields["vocab_size"], place)
    ways = heads()
    if "fused" in ways:
        from trl.trainer.utils import add_fused_lm_head

        add_fused_lm_head(module)
    show(
        "device", side="padded", device=device(), attention=module.config._attn_implementation, trl=installed("trl")
    )  # fmt: skip
    for name, way in ways.items():
        for rows in args.rows:
            measured(module, optimizer, name, way, batch, work, fields, rows=rows, most=args.most)


def measured(
    module: Any,
    optimizer: Any,
    name: str,
    way: LogProbs,
    batch: tuple[Tensor, Tensor, int],
    work: Work,
    fields: dict[str, Any],
    *,
    rows: int,
    most: int,
) -> None:
    """One row of what a head and a micro-batch size take; FLOPs are those that the work needs, as for our side."""
    about = {"side": "padded", "setting": f"{name}, {rows} rows", "work": work.name}
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    try:
        seconds, done = timed(module, optimizer, way, batch, rows=rows, most=most)
    except torch.OutOfMemoryError as error:
        optimizer.zero_grad(set_to_none=True)
        torch.cuda.empty_cache()
        show("failed", **about, why=str(error).splitlines()[0])
        return
    tokens = int(batch[1][:done].sum())
    whole = seconds * len(batch[0]) / done
    show(
        "update",
        **about,
        seconds=[round(seconds, 5)],
        median_s=round(whole, 5),
        rows_timed=done,
        tokens=int(batch[1].sum()),
        tokens_per_s=round(tokens / seconds, 1),
        peak_gib=peak_gib(),
    )


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
