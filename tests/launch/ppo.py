"""A PPO run of seconds, on CPUs: its files, its settings, and what it must have left."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from e2e.reversal import one_thread
from e2e.runs import whole_tensors
from safetensors.torch import load_file

from laurel.models.tiny import warm_start, write_tiny_model


@dataclass(frozen=True)
class SmallPpo:
    """Sums of one digit, and a model that answers them in one or two tokens. ``folder`` lies on the shared disk."""

    folder: Path
    model: Path

    def settings(self, results: Path, *, nodes: int, steps: int = 2, ranks: int = 1) -> list[str]:
        """KEY=VALUE words for a run with actor, critic and reference; ``results`` is its checkpoint folder."""
        return [
            f"data.train_files={self.folder / 'train.parquet'}",
            f"data.val_files={self.folder / 'val.parquet'}",
            "data.train_batch_size=16",
            "data.max_prompt_length=8",
            "data.max_response_length=4",
            f"actor_rollout_ref.model.path={self.model}",
            "actor_rollout_ref.actor.ppo_mini_batch_size=8",
            "actor_rollout_ref.actor.optim.lr=1e-3",
            "critic.optim.lr=1e-3",
            "algorithm.kl_ctrl.kl_coef=0.001",
            "trainer.device=cpu",
            f"trainer.nnodes={nodes}",
            f"trainer.n_gpus_per_node={ranks}",
            f"trainer.total_training_steps={steps}",
            "trainer.val_before_train=False",
            "trainer.placement_timeout=120",
            f"trainer.default_local_dir={results}",
        ]

    def check(self, results: Path, log: str, *, nodes: int, steps: int = 2) -> None:
        """The run trained on that many nodes, one rank each, to its end, and moved both models."""
        placed = re.findall(r"node (\S+): rank (\d+) on cpu", log)
        assert [rank for _, rank in placed] == [str(rank) for rank in range(nodes)], log
        assert len({node for node, _ in placed}) == nodes, log
        final = results / f"global_step_{steps}"
        state = json.loads((final / "run_state.json").read_text())
        assert (state["step"], state["consumed"]) == (steps, 16 * steps)
        for role in ("actor", "critic"):
            counts = json.loads((final / role / "state.json").read_text())
            assert counts["shards"] == nodes
            assert counts["counts"]["updates"] == 2 * steps
        weights = whole_tensors(final)
        start = load_file(self.model / "model.safetensors")
        assert all(not torch.equal(weights[f"actor:param/{name}"], tensor) for name, tensor in start.items())
        rows = [json.loads(line) for line in (results / "metrics.jsonl").read_text().splitlines()]
        assert [row["step"] for row in rows if "critic/score/mean" in row] == list(range(1, steps + 1))


def write_small_ppo(folder: Path) -> SmallPpo:
    folder.mkdir(parents=True, exist_ok=True)
    sums = [(a, b) for a in range(10) for b in range(10)]
    model = write_tiny_model(folder / "model", characters="0123456789+=", hidden=32, layers=2, seed=0)
    with one_thread():
        warm_start(model, [(f"{a}+{b}=", str(a + b)) for a, b in sums], steps=40)
    rows = [
        {
            "data_source": "laurel/arithmetic",
            "prompt": [{"role": "user", "content": f"{a}+{b}="}],
            "ability": "math",
            "reward_model": {"style": "rule", "ground_truth": str(a + b)},
            "extra_info": {"index": index},
        }
        for index, (a, b) in enumerate(sums)
    ]
    pq.write_table(pa.Table.from_pylist(rows[:64]), folder / "train.parquet")
    pq.write_table(pa.Table.from_pylist(rows[64:80]), folder / "val.parquet")
    return SmallPpo(folder, model)
