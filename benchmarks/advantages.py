"""How long every advantage estimator takes on a large ragged batch, on one core.

    OMP_NUM_THREADS=1 python benchmarks/advantages.py

4,096 trajectories in 512 scattered groups of 8, each with a prompt of 64 tokens and, in every third, a tool answer of
32 tokens inside the response; rewards at every token, as with a KL penalty. Response lengths are drawn up to 8,192 in
two ways: long-tailed (log-normal, median 1,024), as responses are, and uniform, which has 2.5 times the tokens. After
one run that is not counted the median and the best of seven are printed; building the batch is not in them.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import time
from typing import get_args

import numpy as np
import torch

from laurel.algos.table import build_algorithm
from laurel.batch.token_batch import TokenBatch, head_column
from laurel.config.estimators import AdvEstimator
from laurel.config.tree import Config

ROWS, GROUP, PROMPT, TOOL, LONGEST = 4096, 8, 64, 32, 8192
HEADS = ["accuracy", "format", "length"]
GOAL_MS = 50.0


def response_lengths(shape: str, rng: np.random.Generator) -> np.ndarray:
    if shape == "uniform":
        return rng.integers(1, LONGEST + 1, ROWS)
    return np.clip(rng.lognormal(np.log(1024), 1.0, ROWS), 1, LONGEST).astype(np.int64)


def make_batch(shape: str) -> TokenBatch:
    rng = np.random.default_rng(0)
    responses = response_lengths(shape, rng)
    lengths = responses + PROMPT
    ends = lengths.cumsum()
    place = np.arange(ends[-1]) - np.repeat(ends - lengths, lengths)
    tool_at = np.where(np.arange(ROWS) % 3 == 0, PROMPT + responses // 2, 2 * LONGEST)
    since_tool = place - np.repeat(tool_at, lengths)
    mask = (place >= PROMPT) & ~((since_tool >= 0) & (since_tool < TOOL))
    tokens = {
        name: torch.from_numpy(rng.random(place.size, dtype=np.float32))
        for name in ("rewards", "values", "logit_grad_squares")
    }
    rows = {
        name: torch.from_numpy(rng.random(ROWS, dtype=np.float32))
        for name in ("greedy_scores", *(head_column(name) for name in HEADS))
    }
    return TokenBatch(
        {"response_mask": torch.from_numpy(mask), **tokens},
        {
            "group": torch.from_numpy(rng.permutation(np.arange(ROWS) // GROUP)),
            "weight": torch.ones(ROWS),
            **rows,
        },
        torch.from_numpy(np.concatenate([[0], ends])),
    )


def times_ms(name: str, batch: TokenBatch, repeats: int) -> list[float]:
    settings = {"adv_estimator": name, "gdpo_reward_keys": HEADS, "gamma": 0.99, "lam": 0.95}
    advantages = build_algorithm(Config.model_validate({"algorithm": settings})).advantages
    advantages(batch)
    spent = []
    for _ in range(repeats):
        start = time.perf_counter()
        advantages(batch)
        spent.append(1000 * (time.perf_counter() - start))
    return spent


def processor() -> str:
    with open("/proc/cpuinfo") as file:
        return next(line.partition(":")[2].strip() for line in file if line.startswith("model name"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=7)
    repeats = parser.parse_args().repeats
    torch.set_num_threads(1)
    print(f"{processor()}, {os.cpu_count()} cores seen, OMP_NUM_THREADS={os.environ.get('OMP_NUM_THREADS')}")
    print(f"Python {platform.python_version()}, torch {torch.__version__}, NumPy {np.__version__}")
    for shape in ("long-tailed", "uniform"):
        batch = make_batch(shape)
        sampled = int(batch.response_mask.sum())
        print(f"\n{shape}: {ROWS} trajectories, {batch.token_count:,} tokens, {sampled:,} of them sampled")
        print(f"{'adv_estimator':<30}{'median ms':>11}{'best ms':>10}   {GOAL_MS:.0f} ms")
        for name in get_args(AdvEstimator):
            spent = times_ms(name, batch, repeats)
            median = statistics.median(spent)
            print(f"{name:<30}{median:>11.1f}{min(spent):>10.1f}   {'met' if median <= GOAL_MS else '-'}", flush=True)


if __name__ == "__main__":
    main()
