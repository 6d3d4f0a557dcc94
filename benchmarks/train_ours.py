"""Our side of benchmarks.train: one optimizer update of work G's batch, and the pass that only gives log-probabilities.

Prompts that the samples of a group share are computed once, as in a run. Each budget (tokens of one forward and
backward; ``product`` is what the settings give) is warmed up with one update and one pass, which are not counted.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from benchmarks import floor
from benchmarks.record import device, peak_gib, short, show
from benchmarks.shapes import Sizes, default_device, fields_of, sizes_of
from benchmarks.works import Work, training_rows, works
from laurel.batch.build import build_batch
from laurel.batch.pack import MiniBatch, rank_shares
from laurel.batch.token_batch import TokenBatch
from laurel.config.load import load
from laurel.config.tree import Config
from laurel.learner.dist import join
from laurel.learner.learner import PolicyLearner
from laurel.tracking.flops import peak_flops
from laurel.trainer.fit_run import fit_run
from laurel.types import Group, Prompt, Score, Trajectory, Turn


def batch_of(work: Work, vocab: int) -> TokenBatch:
    """The work's sequences with random responses, scores and advantages; log-probabilities near those of chance."""
    groups: dict[int, list[Trajectory]] = {}
    prompts: dict[int, tuple[int, ...]] = {}
    for number, prompt, response in training_rows(work, vocab):
        prompts[number] = prompt
        of_group = groups.setdefault(number, [])
        turn = Turn(response, sampled=True, log_probs=(-math.log(vocab),) * len(response))
        of_group.append(Trajectory(len(of_group), (turn,), "length", 0, Score(float(len(of_group) % 2))))
    batch = build_batch(
        [Group(Prompt(n, prompts[n], (), "random", ""), tuple(trajectories)) for n, trajectories in groups.items()]
    )
    noise = torch.Generator().manual_seed(0)
    return batch.with_(advantages=torch.randn(batch.token_count, generator=noise))


def computed_tokens(work: Work) -> tuple[int, int]:
    """Tokens through the backbone, shared prompts once, and tokens through the head.

    Example: 4 prompts of 16 tokens, each with 4 responses of 16: 4 * 16 + 16 * 16 = 320, and 256.
    """
    responses = sum(work.lengths())
    return work.prompts * work.prompt + responses, responses


def settings_of(folder: str, work: Work, device_name: str, overrides: Sequence[str]) -> Config:
    """The product's settings for the work: bf16 on a GPU, one update, no KL, nothing recomputed; then ``overrides``."""
    return load(
        [
            f"actor_rollout_ref.model.path={folder}",
            "actor_rollout_ref.model.enable_gradient_checkpointing=False",
            f"actor_rollout_ref.rollout.n={work.samples}",
            f"actor_rollout_ref.actor.ppo_mini_batch_size={work.prompts}",
            "algorithm.adv_estimator=grpo",
            f"data.train_batch_size={work.prompts}",
            f"data.max_prompt_length={work.prompt}",
            f"data.max_response_length={work.response}",
            f"trainer.device={device_name}",
            *overrides,
        ]
    ).config


def mean_seconds(call: Callable[[], object], repeats: int) -> list[float]:
    """Seconds of each of ``repeats`` calls after one that is not counted."""
    found = []
    for turn in range(repeats + 1):
        _wait()
        start = time.perf_counter()
        call()
        _wait()
        if turn:
            found.append(time.perf_counter() - start)
    return found


def timed(learner: PolicyLearner, mini: MiniBatch, work: Work, sizes: Sizes, *, repeats: int, **about: Any) -> None:
    """A row for the update and one for the pass, each shown as it comes."""
    computed, scored = computed_tokens(work)
    lengths = [work.prompt + length for length in work.lengths()]
    peak = peak_flops(torch.cuda.get_device_name()) if torch.cuda.is_available() else None
    metrics: dict[str, float] = {}
    calls: list[tuple[str, int, Callable[[], object]]] = [
        ("update", 3, lambda: metrics.update(learner.update([mini]))),
        ("log_probs", 1, lambda: learner.log_probs(mini.micro_batches)),
    ]
    for name, passes, call in calls:
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()
        seconds = mean_seconds(call, repeats)
        middle = statistics.median(seconds)
        flops = floor.training(sizes, computed=computed, scored=scored, lengths=lengths, passes=passes)
        show(
            name,
            **about,
            side="ours",
            work=work.name,
            micro_batches=len(mini.micro_batches),
            seconds=[round(s, 5) for s in seconds],
            median_s=round(middle, 5),
            tokens=sum(lengths),
            tokens_computed=computed,
            tokens_per_s=round(sum(lengths) / middle, 1),
            mfu=round(flops / middle / peak, 4) if peak else None,
            floor_s=short(flops / floor.FLOPS),
            peak_gib=peak_gib(),
            metrics={key: short(value) for key, value in metrics.items()} if name == "update" else {},
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", help="Hugging Face folder with weights")
    parser.add_argument("--model", default="0.5b")
    parser.add_argument("--size", choices=["full", "small"], default="full")
    parser.add_argument("--budgets", nargs="+", default=["product"], help="tokens of one forward and backward")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--device", choices=["cpu", "cuda"])
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="further settings of the product")
    args = parser.parse_args()
    place, work, fields = args.device or default_device(), works(args.size)["G"], fields_of(args.model)
    free = torch.cuda.mem_get_info()[0] if place == "cuda" else 0
    show("device", side="ours", device=device(), settings=args.set)
    fit = fit_run(
        settings_of(args.folder, work, place, args.set),
        free,
        validation_rows=0,
        say=lambda line: show("plan", side="ours", line=line),
    )
    config = fit.config
    learner = PolicyLearner("actor", config, ranks=join(rank=0, world=1, meeting=None, device=place), total_updates=100)
    learner.keep_logits = fit.keep_logits
    batch = batch_of(work, fields["vocab_size"])
    for budget in args.budgets:
        tokens = config.actor_rollout_ref.actor.ppo_max_token_len_per_gpu if budget == "product" else int(budget)
        (mini,) = rank_shares(batch, 1, tokens)
        try:
            timed(learner, mini, work, sizes_of(fields), repeats=args.repeats, setting=f"budget {tokens}")
        except torch.OutOfMemoryError as error:
            show("failed", side="ours", setting=f"budget {tokens}", why=str(error).splitlines()[0])
            torch.cuda.empty_cache()


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
