"""Shapes and works that memory is planned for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from published_shapes import QWEN_05, QWEN_7

from laurel.config.load import load
from laurel.config.tree import Config

HALF, SEVEN = 494_032_768, 7_615_616_512
GIB = 2**30
A100, H200 = 78.8 * GIB, 139.3 * GIB  # what a process finds free

# GRPO: 128 prompts of 128 tokens x 8 responses of 512, one update a step
WORK_G = (
    "algorithm.adv_estimator=grpo", "data.train_batch_size=128", "actor_rollout_ref.rollout.n=8",
    "data.max_prompt_length=128", "data.max_response_length=512",
)  # fmt: skip
# GRPO: 64 prompts of 512 tokens x 8 responses of 1,024
WORK_L = (
    "algorithm.adv_estimator=grpo", "data.train_batch_size=64", "actor_rollout_ref.rollout.n=8",
    "data.max_prompt_length=512", "data.max_response_length=1024",
)  # fmt: skip
# PPO: 256 prompts of 512 tokens and responses of 256, with a critic and a KL in the reward
WORK_P = (
    "data.train_batch_size=256", "data.max_prompt_length=512", "data.max_response_length=256",
    "algorithm.kl_ctrl.kl_coef=0.001", "actor_rollout_ref.actor.ppo_mini_batch_size=64",
)  # fmt: skip

MODEL = "actor_rollout_ref.model"
ACTOR, ROLLOUT, REF = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "actor_rollout_ref.ref"


@pytest.fixture
def settings(tmp_path: Path):
    """Settings for ranks with a GPU each, and a model of 0.5 or 7 billion parameters."""
    for name, fields in (("0.5b", QWEN_05), ("7b", QWEN_7)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(fields))

    def make(name: str, *words: str, ranks: int = 1) -> Config:
        common = (f"{MODEL}.path={tmp_path / name}", "trainer.device=cuda", f"trainer.n_gpus_per_node={ranks}")
        return load([*common, *words]).config

    return make
