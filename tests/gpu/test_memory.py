"""What only a GPU shows of memory: that predictions hold, and masters and moments in CPU memory."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
import torch

from laurel.batch.pack import rank_shares
from laurel.batch.token_batch import TokenBatch
from laurel.config.tree import Config
from laurel.learner.dist import Ranks
from laurel.learner.learner import PolicyLearner
from laurel.models.memory import Shape, Tokens, update_parts

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
GROUPS, SAMPLES, PROMPT, RESPONSE = 4, 4, 128, 384
FIELDS = {
    "vocab_size": 50_000, "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 12,
    "num_attention_heads": 16, "num_key_value_heads": 4, "max_position_embeddings": 2048, "pad_token_id": 0,
    "bos_token_id": 1, "eos_token_id": 2, "tie_word_embeddings": False,
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from transformers import AutoModelForCausalLM, Qwen2Config

    path = tmp_path_factory.mktemp("model")
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(Qwen2Config(**FIELDS)).to(torch.bfloat16).save_pretrained(path)
    return path


def _learner(folder: Path, *, recompute: bool = False, offload: bool = False) -> PolicyLearner:
    config = Config.model_validate(
        {
            "actor_rollout_ref": {
                "model": {"path": str(folder), "enable_gradient_checkpointing": recompute},
                "actor": {"fsdp_config": {"optimizer_offload": offload}, "optim": {"lr": 1e-3}},
            }
        }
    )
    return PolicyLearner("actor", config, ranks=Ranks(device=torch.device("cuda:0")), total_updates=10)


def _batch() -> TokenBatch:
    random, row, rows = torch.Generator().manual_seed(0), PROMPT + RESPONSE, GROUPS * SAMPLES
    prompts = torch.randint(3, 50_000, (GROUPS, 1, PROMPT), generator=random).expand(-1, SAMPLES, -1)
    responses = torch.randint(3, 50_000, (GROUPS, SAMPLES, RESPONSE), generator=random)
    return TokenBatch(
        {
            "input_ids": torch.cat([prompts, responses], -1).reshape(-1),
            "position_ids": torch.arange(row).repeat(rows),
            "response_mask": (torch.arange(row) >= PROMPT).repeat(rows),
            "advantages": torch.randn(rows * row, generator=random),
        },
        {
            "index": torch.arange(rows),
            "group": torch.arange(GROUPS).repeat_interleave(SAMPLES),
            "weight": torch.ones(rows),
        },
        torch.arange(rows + 1) * row,
    )


def _update(learner: PolicyLearner, tokens: int) -> int:
    """Bytes at the peak of a second update in micro-batches of so many tokens."""
    for _ in range(2):
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        learner.update(rank_shares(_batch(), 1, tokens))
    return torch.cuda.max_memory_allocated()


@pytest.mark.parametrize("recompute", [False, True])
def test_an_update_takes_what_is_predicted(folder: Path, recompute: bool) -> None:
    gc.collect()
    before = torch.cuda.memory_allocated()
    learner = _learner(folder, recompute=recompute)
    found = _update(learner, GROUPS * SAMPLES * (PROMPT + RESPONSE) // 2) - before
    shape, groups = Shape.of({**FIELDS, "model_type": "qwen2"}), GROUPS // 2
    sampled = groups * SAMPLES * RESPONSE
    tokens = Tokens(groups * PROMPT + sampled, groups * SAMPLES * (PROMPT + RESPONSE), sampled)
    predicted = 18 * shape.parameters + sum(update_parts(shape, tokens, recompute=recompute).values())
    assert found == pytest.approx(predicted, rel=0.1)


def test_masters_and_moments_in_cpu_memory_give_the_same_update(folder: Path) -> None:
    found = {}
    for offload in (False, True):
        gc.collect()
        before = torch.cuda.memory_allocated()
        learner = _learner(folder, offload=offload)
        held = torch.cuda.memory_allocated() - before
        parameters = sum(p.numel() for p in learner.module.parameters())
        assert held == pytest.approx((2 if offload else 14) * parameters, rel=0.05)
        _step_twice(learner)
        assert torch.cuda.memory_allocated() - before == pytest.approx(held, rel=0.1)
        assert learner.optimizer is not None
        devices = {tensor.device.type for tensor in learner.optimizer.tensors().values()}
        assert devices == {"cpu" if offload else "cuda"}
        found[offload] = {name: tensor.cpu().clone() for name, tensor in learner.optimizer.tensors().items()}
        del learner
    for name, tensor in found[False].items():
        assert torch.equal(found[True][name], tensor), name


def _step_twice(learner: PolicyLearner) -> None:
    """On gradients that are the same in every run: those of a backward differ in their last bits, and Adam's first
    steps go by their signs."""
    assert learner.optimizer is not None
    random = torch.Generator("cuda").manual_seed(0)
    for _ in range(2):
        for name, parameter in learner.optimizer.parameters.items():
            learner.optimizer.gradients[name] = torch.randn(parameter.shape, generator=random, device="cuda")
        learner.optimizer.step()
