"""A task that a tiny model can learn in seconds and cannot win with one constant answer: reverse two letters.

The model is warm-started on answers of which half are random, so that sampling succeeds sometimes; validation prompts
are never trained on, neither in the warm start nor by reinforcement learning.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from laurel.models.tiny import warm_start, write_tiny_model

LETTERS = "abcdefghijklmnopqrst"
REWARD = '''
def compute_score(data_source, solution_str, ground_truth, extra_info):
    """1 for the right answer, and a little for two letters, so that the format is not lost."""
    right = solution_str == ground_truth
    return {"score": float(right), "acc": float(right), "format": float(len(solution_str) == 2)}
'''


@dataclass(frozen=True)
class Task:
    """Paths for the command line, and what the best constant answer would score on validation."""

    model: Path
    train: Path
    shuffled: Path
    val: Path
    reward: Path
    best_constant: float

    def arguments(self, *, train: Path | None = None) -> list[str]:
        return [
            f"data.train_files={train or self.train}",
            f"data.val_files={self.val}",
            f"actor_rollout_ref.model.path={self.model}",
            f"reward.custom_reward_function.path={self.reward}",
            "trainer.device=cpu",
        ]


def write_task(folder: Path, *, heads: int = 4, kv_heads: int = 2) -> Task:
    pairs = [a + b for a in LETTERS for b in LETTERS]
    order = random.Random(0)
    order.shuffle(pairs)
    train, val = pairs[:320], pairs[320:]
    assert not set(train) & set(val)

    model = write_tiny_model(
        folder / "model", characters=LETTERS, hidden=64, layers=2, heads=heads, kv_heads=kv_heads, seed=0
    )
    noisy = random.Random(1)
    lessons = [
        (pair, pair[::-1] if noisy.random() < 0.5 else "".join(noisy.choices(LETTERS, k=2)))
        for pair in train
        for _ in range(6)
    ]
    with one_thread():
        warm_start(model, lessons, steps=200)

    reward = folder / "reward.py"
    reward.write_text(REWARD)
    answers = [pair[::-1] for pair in train]
    order.shuffle(answers)
    return Task(
        model=model,
        train=_write(folder / "train.jsonl", train, [pair[::-1] for pair in train]),
        shuffled=_write(folder / "shuffled.jsonl", train, answers),
        val=_write(folder / "val.jsonl", val, [pair[::-1] for pair in val]),
        reward=reward,
        best_constant=1 / len(val),  # every answer is right for exactly one prompt
    )


@contextmanager
def one_thread() -> Iterator[None]:
    """Threads of torch decide the last bits of a warm start, and two of them crawl beside another busy process."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _write(path: Path, prompts: list[str], answers: list[str]) -> Path:
    rows = [
        {
            "data_source": "test/reversal",
            "prompt": [{"role": "user", "content": prompt}],
            "ability": "copying",
            "reward_model": {"style": "rule", "ground_truth": answer},
            "extra_info": {"split": path.stem, "index": index},
        }
        for index, (prompt, answer) in enumerate(zip(prompts, answers, strict=True))
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path
