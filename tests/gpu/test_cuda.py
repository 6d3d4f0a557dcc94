"""What only a GPU shows: graphs, kernels as compiled, sleep beside graphs, and the agreement of engine and learner."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import torch

from laurel.batch.pack import rank_shares
from laurel.batch.token_batch import TokenBatch
from laurel.config.tree import Config
from laurel.learner.dist import Ranks
from laurel.learner.learner import PolicyLearner
from laurel.rollout.native.engine import NativeEngine
from laurel.types import Completion, Request, SamplingParams
from laurel.weights.fingerprint import tensor_checksum
from laurel.weights.ways import SameMemory

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
FAMILIES = ["llama", "qwen2", "qwen3", "gemma"]


@pytest.fixture
def folder(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    from transformers import AutoConfig, AutoModelForCausalLM

    shape = {
        "vocab_size": 5000, "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4,
        "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64, "max_position_embeddings": 2048,
        "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "tie_word_embeddings": True,
    }  # fmt: skip
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(getattr(request, "param", "qwen2"), **shape))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.02)
    model.to(torch.bfloat16).save_pretrained(tmp_path)
    return tmp_path


def _learner(folder: Path) -> PolicyLearner:
    """Without clipping, which would scale the gradients that tests look at."""
    model = {"path": str(folder), "enable_gradient_checkpointing": False}
    config = Config.model_validate({"actor_rollout_ref": {"model": model, "actor": {"optim": {"clip_grad": 1e9}}}})
    return PolicyLearner("actor", config, ranks=Ranks(device=torch.device("cuda:0")))


def _requests(groups: int, samples: int, *, prompt: int = 70, longest: int = 90, **sampling: Any) -> list[Request]:
    generator = torch.Generator().manual_seed(groups)
    found = []
    for group in range(groups):
        ids = tuple(torch.randint(3, 5000, (prompt + group,), generator=generator).tolist())
        for sample in range(samples):
            settings = SamplingParams(max_tokens=longest - 7 * (sample % 5), **sampling)
            found.append(Request(f"{group}/{sample}", ids, settings, 1000 * group + sample))
    return found


def _answers(engine: NativeEngine, requests: list[Request]) -> list[Completion]:
    return [future.result(300) for future in engine.submit_all(requests)]


def _batch(requests: list[Request], answers: list[Completion], groups: list[int]) -> TokenBatch:
    rows = [(*asked.prompt_ids, *found.token_ids) for asked, found in zip(requests, answers, strict=True)]
    bounds = torch.tensor([0] + [len(row) for row in rows]).cumsum(0)
    masks = [
        [False] * len(asked.prompt_ids) + [True] * len(a.token_ids) for asked, a in zip(requests, answers, strict=True)
    ]
    return TokenBatch(
        {
            "input_ids": torch.tensor([token for row in rows for token in row]),
            "position_ids": torch.cat([torch.arange(len(row)) for row in rows]),
            "response_mask": torch.tensor([one for mask in masks for one in mask]),
        },
        {"index": torch.arange(len(rows)), "group": torch.tensor(groups), "weight": torch.ones(len(rows))},
        bounds,
    )


@pytest.mark.parametrize("folder", FAMILIES, indirect=True)
def test_rollout_and_learner_agree(folder: Path) -> None:
    learner = _learner(folder)
    engine = NativeEngine(learner.module, max_slots=16, max_len=256, stop_token_ids=())
    assert engine.batch_kind == "paged"
    requests = _requests(5, 4)
    answers = _answers(engine, requests)
    engine.close()
    batch = _batch(requests, answers, [i // 4 for i in range(20)])
    learned = learner.log_probs([batch])[0][batch.response_mask]
    sampled = torch.tensor([value for answer in answers for value in answer.log_probs])
    assert float((learned - sampled).abs().mean()) < 1.5e-2
    assert float((learned - sampled).abs().max()) < 0.3
    # Against the module's own layers in float32
    from transformers import AutoModelForCausalLM

    plain = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).cuda()
    start = 0
    for row in range(3):
        length = int(batch.lengths[row])
        ids = batch.input_ids[start : start + length].cuda()[None]
        with torch.no_grad():
            exact = torch.log_softmax(plain(ids).logits[0], -1)
        mask = batch.response_mask[start : start + length]
        at = mask.nonzero()[:, 0].cuda()
        wanted = exact[at - 1, ids[0, at]].cpu()
        ours = learner.log_probs([batch.select([row])])[0][mask]
        assert float((ours - wanted).abs().mean()) < 2e-2
        start += length


def test_the_same_whatever_the_slots_and_graphs(folder: Path) -> None:
    """Greedy texts with few slots (refilled, prefilled in graphs) and with many agree but for near-ties."""
    learner = _learner(folder)
    requests = _requests(30, 3, temperature=0.0)
    many = NativeEngine(learner.module, max_slots=90, max_len=256, stop_token_ids=())
    reference = _answers(many, requests)
    many.close()
    few = NativeEngine(learner.module, max_slots=20, max_len=256, stop_token_ids=())
    found = _answers(few, requests)
    few.close()
    same = [a.token_ids[:16] == b.token_ids[:16] for a, b in zip(reference, found, strict=True)]
    assert sum(same) >= 0.8 * len(same)
    assert [len(a.token_ids) for a in reference] == [len(b.token_ids) for b in found]


def test_sleep_train_wake(folder: Path) -> None:
    """Graphs hold addresses: after sleep, an update and wake the engine samples as a fresh one of the new weights."""
    learner = _learner(folder)
    engine = NativeEngine(learner.module, max_slots=16, max_len=256, stop_token_ids=())
    requests = _requests(4, 4)
    before = _answers(engine, requests)
    asyncio.run(engine.sleep())
    again = asyncio.run(_wake(engine)) or _answers(engine, requests)
    assert [a.token_ids for a in again] == [b.token_ids for b in before]
    asyncio.run(engine.sleep())
    batch = _batch(requests, before, [i // 4 for i in range(16)])
    for parameter_group in learner.optimizer.adam.param_groups:
        parameter_group["lr"] = 1e-2
    learner.optimizer.optim = learner.optimizer.optim.model_copy(update={"lr": 1e-2})
    metrics = learner.update(rank_shares(batch.with_(advantages=torch.ones(batch.token_count)), 1, 100_000))
    assert metrics["actor/grad_norm"] > 0
    asyncio.run(_wake(engine))
    asyncio.run(SameMemory(learner.module).publish(engine, 1))
    after = _answers(engine, requests)
    engine.close()
    assert [a.token_ids for a in after] != [b.token_ids for b in before]
    fresh = NativeEngine(learner.module, max_slots=16, max_len=256, stop_token_ids=())
    assert [a.token_ids for a in _answers(fresh, requests)] == [b.token_ids for b in after]
    fresh.close()


async def _wake(engine: NativeEngine) -> None:
    await engine.wake("weights")
    await engine.wake("cache")


def test_gradients_of_an_update(folder: Path) -> None:
    """Kernels, shared prompts and micro-batches against float32 autograd through the module's own layers."""
    from transformers import AutoModelForCausalLM

    learner = _learner(folder)
    generator = torch.Generator().manual_seed(5)
    requests = _requests(3, 4)
    answers = [
        Completion(
            r.id,
            tuple(torch.randint(3, 5000, (20 + i,), generator=generator).tolist()),
            (0.0,) * (20 + i),
            "stop",
            policy_version=0,
        )
        for i, r in enumerate(requests)
    ]
    batch = _batch(requests, answers, [i // 4 for i in range(12)])
    batch = batch.with_(advantages=torch.randn(batch.token_count, generator=generator))
    gradients: dict[str, torch.Tensor] = {}
    forget = learner.optimizer.forget

    def keep() -> None:
        gradients.update({name: g.clone() for name, g in learner.optimizer.gradients.items()})
        forget()

    learner.optimizer.forget = keep
    learner.update(rank_shares(batch, 1, 600))
    plain = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).cuda()
    total = 0.0
    for row in range(batch.row_count):
        start, end = batch.cu_seqlens[row : row + 2].tolist()
        ids, mask = batch.input_ids[start:end].cuda(), batch.response_mask[start:end].cuda()
        log_probs = torch.log_softmax(plain(ids[None]).logits[0, :-1], -1).gather(1, ids[1:, None])[:, 0]
        total = total - (log_probs * batch.advantages[start:end].cuda()[1:] * mask[1:]).sum()
    (total / batch.response_mask.sum()).backward()
    checked = 0
    for name, parameter in plain.named_parameters():
        error = (gradients[name] - parameter.grad).norm() / parameter.grad.norm()
        assert float(error) < 0.05, f"{name}: {error}"
        checked += 1
    assert checked > 40


@pytest.mark.parametrize("count", [1, 7, 4096, 1_000_003])
def test_checksums_are_those_of_a_cpu(count: int) -> None:
    from laurel.weights.fingerprint import checksums

    tensor = torch.randn(count, generator=torch.Generator().manual_seed(count)).bfloat16()
    assert checksums({"w": tensor.cuda()})["w"] == tensor_checksum(tensor)
