"""vLLM beside the learner on one GPU: weights by CUDA IPC, memory given back in sleep, log-probs as the learner's."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from laurel.batch.build import build_batch
from laurel.config.load import load
from laurel.config.tree import Config
from laurel.rollout.engine import EngineError
from laurel.types import Completion, Group, Prompt, Request, SamplingParams, Score, Trajectory, Turn
from laurel.workers.dispatch import Budget, UpdatePlan, put_together, share_forward, share_updates
from laurel.workers.host import RankHost, Updates

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
    pytest.mark.skipif(find_spec("vllm") is None, reason="needs vLLM"),
]
GIB = 1 << 30


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from transformers import AutoConfig, AutoModelForCausalLM

    from laurel.models.tiny import write_tiny_model

    folder = write_tiny_model(tmp_path_factory.mktemp("small") / "model")  # for its tokenizer
    shape = {
        "vocab_size": 5000, "hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 4,
        "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64, "max_position_embeddings": 2048,
        "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "tie_word_embeddings": True,
    }  # fmt: skip
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model("qwen2", **shape))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.02)
    model.to(torch.bfloat16).save_pretrained(folder)
    return folder


def configured(folder: Path, *more: str) -> Config:
    return load(
        [
            "data.train_files=unused.parquet",
            "data.train_batch_size=8",
            "data.max_prompt_length=64",
            "data.max_response_length=128",
            f"actor_rollout_ref.model.path={folder}",
            "actor_rollout_ref.actor.ppo_mini_batch_size=8",
            "actor_rollout_ref.actor.optim.lr=1e-3",
            "actor_rollout_ref.rollout.name=vllm",
            "actor_rollout_ref.rollout.n=8",
            "actor_rollout_ref.rollout.temperature=0.8",
            "actor_rollout_ref.rollout.gpu_memory_utilization=0.2",
            "algorithm.adv_estimator=grpo",
            "trainer.device=cuda",
            "trainer.n_gpus_per_node=1",
            *more,
        ]
    ).config


@pytest.fixture(scope="module")
def host(folder: Path) -> Iterator[RankHost]:
    made = RankHost(configured(folder), rank=0, world=1, device="cuda")
    made.build(made.open_meeting("127.0.0.1"), Updates(10, 10))
    yield made
    made.close()


def requests(count: int, max_tokens: int = 128) -> list[Request]:
    prompts = [tuple(range(10 + i, 40 + i)) for i in range(count // 8)]
    settings = [SamplingParams(max_tokens, temperature=0.8, top_p=top_p, ignore_eos=True) for top_p in (1.0, 0.9)]
    return [Request(str(i), prompts[i // 8], settings[i % 2], seed=i, group=str(i // 8)) for i in range(count)]


def sample(host: RankHost, asked: list[Request]) -> list[Completion]:
    found = {one.request_id: one for some in host.generate(asked) for one in some}
    return [found[one.id] for one in asked]


def test_rounds_of_sampling_and_learning(host: RankHost) -> None:
    """The learner agrees with vLLM on its tokens, after an update as before it, within what bf16 gives."""
    for version in range(3):
        host.wake(version)
        asked = requests(64)
        found = sample(host, asked)
        host.sleep()
        assert {one.policy_version for one in found} == {version}
        groups = []
        for first in range(0, 64, 8):
            group = [
                Trajectory(i, (Turn(c.token_ids, True, c.log_probs),), "length", version, Score(float(i % 2)))
                for i, c in enumerate(found[first : first + 8])
            ]
            groups.append(Group(Prompt(first, asked[first].prompt_ids, (), "x", "y"), tuple(group)))
        batch = build_batch(groups)
        shares = share_forward(batch, Budget(8192), ranks=1)
        log_probs = put_together(batch, "log_probs", shares, [host.actor.log_probs(shares[0])])
        gap = (log_probs - batch.rollout_log_probs)[batch.response_mask].abs()
        print(f"version {version}: mean {gap.mean():.5f} max {gap.max():.5f}")
        assert gap.mean() < 0.02
        assert gap.max() < 0.5
        batch = batch.with_(old_log_probs=log_probs, advantages=(batch.score - 0.5)[batch.row_of_token])
        host.actor.update(share_updates(batch, UpdatePlan(8, 1, False, 1, Budget(8192)), step=1, ranks=1)[0])


def test_sleep_gives_memory_back_and_wake_takes_it_again(host: RankHost) -> None:
    host.wake(11)
    before = sample(host, requests(8))
    awake = torch.cuda.mem_get_info()[0]
    host.sleep()
    asleep = torch.cuda.mem_get_info()[0]
    assert asleep - awake > 10 * GIB
    with pytest.raises(EngineError, match="the engine sleeps"):
        sample(host, requests(8))
    host.wake(None)
    assert sample(host, requests(8)) == before
    host.sleep()


def test_wake_without_memory_is_an_error_and_goes_through_later(host: RankHost) -> None:
    asyncio.run(host.engine.wake("weights"))
    free = torch.cuda.mem_get_info()[0]
    taken = torch.empty(free - GIB, dtype=torch.uint8, device="cuda")
    with pytest.raises(EngineError, match="wake: vLLM"):
        asyncio.run(host.engine.wake("cache"))
    del taken
    torch.cuda.empty_cache()
    host.wake(12)
    assert len(sample(host, requests(8))) == 8
    host.sleep()


def test_a_publish_takes_a_moment(host: RankHost) -> None:
    times = []
    for version in range(20, 24):
        start = time.perf_counter()
        host.wake(version)
        times.append(time.perf_counter() - start)
        host.sleep()
    assert min(times) < 2.0
