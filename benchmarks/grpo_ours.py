"""Our side of benchmarks.grpo_step: ``python -m laurel.trainer.main_ppo`` on random weights, prompts and rewards.

    G   GRPO on benchmarks.works' G: one update a step, no KL, every response of full length
    P   the PPO recipe of the multi-node guide's SkyPilot option: 256 prompts of 512 tokens, one response of 256 each,
        four updates, a critic, KL in the reward; batch keys as printed there

The command's file logger says how long each phase took; a step's time is from one line of that file to the next, so
what happens between two steps counts too, and the first step stands for the warm-up. The run is ended when the last
step is written, before it saves a checkpoint.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.child import Ended, run
from benchmarks.record import Records, short
from benchmarks.shapes import fields_of
from benchmarks.words import text_of
from benchmarks.works import FULL, SMALL, Work

REWARD = """import random


def compute_score(data_source, solution_str, ground_truth, extra_info):
    return random.random()
"""
_PPO = Work("P", "PPO with a critic and KL in the reward", 256, 1, 512, 256, slots=256)
WORKS = {
    "full": {"G": FULL["G"], "P": _PPO},
    "small": {"G": SMALL["G"], "P": replace(_PPO, prompts=8, prompt=24, response=12)},
}
KEPT = ("timing_s/", "perf/", "rollout/", "response_length/", "actor/grad_norm", "actor/entropy", "actor/skipped")


def settings(name: str, work: Work) -> list[str]:
    """What the work asks of the product, besides model and data."""
    common = [
        f"data.train_batch_size={work.prompts}",
        f"data.max_prompt_length={work.prompt}",
        f"data.max_response_length={work.response}",
        f"actor_rollout_ref.rollout.n={work.samples}",
        "actor_rollout_ref.rollout.ignore_eos=True",
        "actor_rollout_ref.actor.optim.lr=1e-6",
        "trainer.val_before_train=False",
        "trainer.n_gpus_per_node=1",
    ]
    if name == "G":
        own = ["algorithm.adv_estimator=grpo", f"actor_rollout_ref.actor.ppo_mini_batch_size={work.prompts}"]
        return [*common, *own, "actor_rollout_ref.model.enable_gradient_checkpointing=False"]
    return [
        *common,
        f"actor_rollout_ref.actor.ppo_mini_batch_size={work.prompts // 4}",
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4",
        "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=8",
        "actor_rollout_ref.rollout.gpu_memory_utilization=0.4",
        "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=4",
        "critic.optim.lr=1e-5",
        "critic.ppo_micro_batch_size_per_gpu=4",
        "algorithm.kl_ctrl.kl_coef=0.001",
    ]


def write_data(work: Work, vocab: int, steps: int, folder: Path) -> list[str]:
    """Prompts of exactly ``work.prompt`` tokens and a random reward; the settings that name them."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [
        {
            "data_source": "random",
            "prompt": text_of(ids, vocab),
            "reward_model": {"style": "rule", "ground_truth": "none"},
        }
        for ids in replace(work, prompts=work.prompts * steps).prompt_ids(vocab)
    ]
    pq.write_table(pa.Table.from_pylist(rows), folder / "train.parquet")
    (folder / "reward.py").write_text(REWARD)
    return [
        f"data.train_files={folder / 'train.parquet'}",
        f"data.cache_dir={folder / 'cache'}",
        f"reward.custom_reward_function.path={folder / 'reward.py'}",
        f"trainer.default_local_dir={folder / 'run'}",
        f"trainer.total_training_steps={steps}",
    ]


@dataclass
class Steps:
    """The lines of a run's metrics.jsonl, each shown once as a row when it is there."""

    path: Path
    records: Records
    about: dict[str, Any]
    seen: int = 0
    last: float | None = None

    def poll(self) -> int:
        """Steps shown so far."""
        lines = self.path.read_text(encoding="utf-8").splitlines(keepends=True) if self.path.exists() else []
        rows = [json.loads(line) for line in lines if line.endswith("\n")]
        for row in [row for row in rows if "timing_s/step" in row][self.seen :]:
            inside = row["timing_s/step"]
            seconds = inside if self.last is None else row["time"] - self.last
            self.last, self.seen = row["time"], self.seen + 1
            self.records.show(
                "step",
                **self.about,
                step=row["step"],
                seconds=round(seconds, 3),
                metrics={key: short(value) for key, value in row.items() if key.startswith(KEPT)},
            )
        return self.seen


def measure(
    records: Records,
    name: str,
    *,
    model: str,
    size: str,
    model_folder: Path,
    parent: Path,
    steps: int,
    device: str | None,
    overrides: Sequence[str],
    limit_s: float,
    log: Path | None,
) -> Ended:
    """One run of the command; its steps are shown as they come, and how it failed if it did.

    It has a folder of its own under ``parent``, which goes with it: a call beside this one must not write the steps
    that are read here, and a run would go on from what an earlier one left.
    """
    work = WORKS[size][name]
    work_folder = Path(tempfile.mkdtemp(prefix=f"step-{name}-", dir=parent))
    words = [
        *write_data(work, fields_of(model)["vocab_size"], steps, work_folder),
        *settings(name, work),
        f"actor_rollout_ref.model.path={model_folder}",
        *([f"trainer.device={device}"] if device else []),
        *overrides,
    ]
    about = {"side": "ours", "setting": "", "work": name, "model": model, "size": size}
    records.show("settings", **about, command=["laurel.trainer.main_ppo", *words])
    found = Steps(work_folder / "run" / "metrics.jsonl", records, about)
    try:
        ended = run(
            [sys.executable, "-m", "laurel.trainer.main_ppo", *words],
            limit_s=limit_s,
            on_line=lambda line: None,
            log=log,
            enough=lambda: found.poll() >= steps,
        )
        complete = found.poll() >= steps
    finally:
        shutil.rmtree(work_folder, ignore_errors=True)  # a checkpoint of the 0.5B shape takes gigabytes
    if not complete:
        why = ended.why or "it ended early"
        records.show("failed", **about, why=f"{why}, after {found.seen} of {steps} steps", tail=ended.tail[-12:])
    return ended
