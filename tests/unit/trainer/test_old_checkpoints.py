"""A checkpoint that an earlier Laurel wrote still loads. tests/fixtures/checkpoint_format_N holds one of each format.

Format 1 was written by the first code that had it, with a tiny model (hidden size 8, one layer): element i of the n-th
tensor is ``(i % 7 + n) / 8``.
"""

from pathlib import Path

import pytest
import torch

from laurel.config.load import load
from laurel.learner.checkpoint import FORMAT_VERSION, damage, newest_checkpoint
from laurel.learner.export import export_checkpoint
from laurel.learner.learner import PolicyLearner
from laurel.models.tiny import write_tiny_model
from laurel.trainer.checkpoints import restore
from laurel.trainer.roles import NoCritic, Roles
from laurel.trainer.run_state import RunState

FIXTURES = Path(__file__).parents[2] / "fixtures"
FORMATS = range(1, FORMAT_VERSION + 1)


@pytest.mark.parametrize("version", FORMATS)
def test_a_checkpoint_of_each_format_is_found_and_restored(version, tmp_path):
    folder = FIXTURES / f"checkpoint_format_{version}" / "global_step_3"
    assert damage(folder) is None
    assert newest_checkpoint(folder.parent).folder == folder
    model = write_tiny_model(tmp_path / "model", hidden=8, layers=1)
    config = load(
        [
            f"actor_rollout_ref.model.path={model}",
            "trainer.device=cpu",
            "algorithm.adv_estimator=grpo",
            "data.train_files=train.parquet",
        ]
    ).config
    actor, state = PolicyLearner("actor", config), RunState()
    restore(folder, config, Roles(actor, None, NoCritic(), None, None), state)
    kl_coef = config.algorithm.kl_ctrl.kl_coef  # a fixed one is the setting of now
    assert state == RunState(step=3, consumed=48, policy_version=3, kl_coef=kl_coef)
    tensors = list(actor.optimizer.tensors().values())
    assert len(tensors) > 20
    for number, tensor in enumerate(tensors):
        expected = (torch.arange(tensor.numel()) % 7 + number).view(tensor.shape) / 8
        assert torch.equal(tensor.detach(), expected)
    assert actor.optimizer.counts() == {"updates": 12, "adam_step": 11, "skipped": 1, "skipped_in_a_row": 0}


@pytest.mark.parametrize("version", FORMATS)
def test_a_checkpoint_of_each_format_is_exported(version, tmp_path):
    out = export_checkpoint(FIXTURES / f"checkpoint_format_{version}" / "global_step_3", tmp_path / "model")
    assert (out / "model.safetensors").is_file()
