import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config

from laurel.config.tree import Rollout
from laurel.models.memory import GIB, OUTSIDE, Serving
from laurel.workers import engines
from laurel.workers.engines import cpu_cache_memory, gpu_cache_memory, serving_on_gpu, slots_for

MIB = 1 << 20
CUDA = torch.device("cuda")
SMALL = {
    "vocab_size": 100, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8,
}  # fmt: skip
TOKEN = 2 * 2 * 2 * 8 * 4  # keys and values of 2 layers and 2 heads of 8, in float32
SLOT = 4 * 100 * 2 + 8 * 64  # rows of logits, and what was sampled
PREFILL = 1000 * (8 * 32 + 2 * 32 + 4 * 16 + 6 * 48)


def test_slots_of_a_cpu_are_this_ranks_part_of_the_batch_within_memory():
    assert slots_for(trajectories=100, slot_bytes=MIB, memory=1000 * MIB) == 100
    assert slots_for(trajectories=256, slot_bytes=MIB, memory=100 * MIB) == 100
    assert slots_for(trajectories=4, slot_bytes=MIB, memory=1000 * MIB) == 64, "validation may have more"
    assert slots_for(trajectories=5000, slot_bytes=MIB, memory=1 << 40) == 256
    assert slots_for(trajectories=8, slot_bytes=MIB, memory=0) == 1


def test_ranks_of_a_machine_share_its_free_memory(monkeypatch):
    monkeypatch.setattr(engines, "available_memory", lambda: 8000)
    assert cpu_cache_memory(2) == 1000


@pytest.fixture
def gpu(monkeypatch):
    """Sets what a GPU has free, and what tensors of this process take of it."""

    def set_to(free, *, reserved=0, allocated=0):
        monkeypatch.setattr("torch.cuda.mem_get_info", lambda device: (free, 10 * free))
        monkeypatch.setattr("torch.cuda.memory_reserved", lambda device: reserved)
        monkeypatch.setattr("torch.cuda.memory_allocated", lambda device: allocated)

    return set_to


def test_a_gpu_cache_takes_what_is_left_of_its_share(gpu):
    gpu(61 * GIB, reserved=40 * GIB, allocated=30 * GIB)  # 101 GiB were free at the start
    assert gpu_cache_memory(CUDA, share=0.5, weights=10 * GIB) == 40.5 * GIB
    assert gpu_cache_memory(CUDA, share=1.0, weights=10 * GIB) == pytest.approx(0.92 * 100 * GIB - 30 * GIB)


def module_of(config):
    return AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")


def serve(config, **rollout):
    settings = Rollout(max_num_batched_tokens=1000, **rollout)
    return serving_on_gpu(settings, module_of(config), device=CUDA, sequences=40, max_len=64, logits=2.0)


def room_for(gpu, config, room):
    """A GPU whose share has ``room`` bytes beside weights and a prefill; what is loaded is not what bounds it."""
    weights = 4 * sum(parameter.numel() for parameter in module_of(config).parameters())
    gpu(2 * (weights + PREFILL + room), allocated=-10 * OUTSIDE)


def test_slots_and_pages_of_a_gpu_by_hand(gpu):
    config = Qwen2Config(**SMALL)
    room_for(gpu, config, 10_000 * TOKEN)
    assert serve(config) == Serving(40, 40 * 64)  # no more than its slots can use
    room = 1000 * TOKEN
    room_for(gpu, config, room)
    slots = int(room // (SLOT + TOKEN * 64 * 0.6))
    assert slots == 22
    assert serve(config) == Serving(slots, (room - slots * SLOT) // TOKEN)
    assert serve(config, max_num_seqs=2) == Serving(2, 128)


def test_a_model_without_pages_has_whole_slots(gpu):
    config = LlamaConfig(**SMALL, mlp_bias=True)
    room_for(gpu, config, 30 * (SLOT + 64 * TOKEN))
    assert serve(config) == Serving(30, 30 * 64)
