"""Effects of null where a GPU's memory decides: something is chosen, and what is given instead is obeyed."""

import json

import pytest
from unit.effects.cases import ACTOR, CRITIC, REF, ROLLOUT
from unit.effects.registry import effect

from laurel.config.keys import value_of
from laurel.trainer.fit import plan_memory, sequences_of
from laurel.trainer.memory import models_of

GIB = 2**30
MODEL = "actor_rollout_ref.model"
HALF_A_BILLION = {
    "model_type": "qwen2", "hidden_size": 896, "num_hidden_layers": 24, "num_attention_heads": 14,
    "num_key_value_heads": 2, "intermediate_size": 4864, "vocab_size": 151936, "tie_word_embeddings": True,
}  # fmt: skip


@pytest.fixture
def planned(settings, tmp_path):
    """The plan of a PPO run with a KL on a GPU of so many GiB."""
    (tmp_path / "big").mkdir()
    (tmp_path / "big" / "config.json").write_text(json.dumps(HALF_A_BILLION))
    common = (
        "data.train_batch_size=64",
        "data.max_prompt_length=512",
        "data.max_response_length=512",
        f"{ROLLOUT}.n=8",
    )
    common += (f"{ACTOR}.use_kl_loss=True", f"{ACTOR}.ppo_mini_batch_size=32")
    words = (f"{MODEL}.path={tmp_path}/big", "trainer.device=cuda", "trainer.n_gpus_per_node=1", *common)

    def make(free, *more):
        config = settings(*words, *more)
        return plan_memory(config, models_of(config), free * GIB, sequences_of(config, 0))

    return make


@effect(f"{ACTOR}.ppo_max_token_len_per_gpu", f"{CRITIC}.ppo_max_token_len_per_gpu")
def test_a_null_budget_of_updates_grows_with_memory(key, planned):
    budgets = [value_of(planned(free).config, key) for free in (40, 60, 139)]
    assert budgets == sorted(set(budgets))
    assert budgets[-1] == 65_536
    assert value_of(planned(60, f"{key}=9000").config, key) == 9000
    large, small = (planned(139, f"{key}={tokens}").predicted for tokens in (65_536, 9000))
    assert large >= small


@effect(f"{ROLLOUT}.log_prob_max_token_len_per_gpu", f"{REF}.log_prob_max_token_len_per_gpu")
def test_a_null_budget_of_forwards_is_what_fits(key, planned):
    tight = (21, f"{ACTOR}.fsdp_config.optimizer_offload=False", f"{CRITIC}.fsdp_config.optimizer_offload=False")
    assert value_of(planned(139).config, key) == 65_536
    assert value_of(planned(*tight).config, key) == 7168
    assert value_of(planned(*tight, f"{key}=5000").config, key) == 5000


@effect(f"{MODEL}.enable_gradient_checkpointing", f"{CRITIC}.model.enable_gradient_checkpointing")
def test_null_recomputes_only_where_memory_needs_it(key, planned):
    stays = (f"{ACTOR}.fsdp_config.optimizer_offload=False", f"{CRITIC}.fsdp_config.optimizer_offload=False")
    assert value_of(planned(139).config, key) is False
    assert value_of(planned(23, *stays).config, key) is True
    assert value_of(planned(139, f"{key}=True").config, key) is True
    assert value_of(planned(23, *stays, f"{key}=False").config, key) is False


@effect(f"{ACTOR}.fsdp_config.optimizer_offload", f"{CRITIC}.fsdp_config.optimizer_offload")
def test_null_offloads_only_where_memory_needs_it(key, planned):
    assert value_of(planned(139).config, key) is False
    assert value_of(planned(16).config, key) is True
    assert value_of(planned(139, f"{key}=True").config, key) is True
    assert value_of(planned(16, f"{key}=False").config, key) is False


@effect(f"{ROLLOUT}.gpu_memory_utilization", f"{ROLLOUT}.max_num_seqs", f"{ROLLOUT}.max_model_len")
def test_slots_follow_share_and_length(key, planned):
    if key.endswith("max_num_seqs"):
        assert [planned(139, f"{key}={slots}").serving.slots for slots in (7, 2000)] == [7, 2000]
    elif key.endswith("max_model_len"):
        short, long = (planned(40, f"{key}={length}").serving.slots for length in (1024, 16_384))
        assert long < short == 512
    else:
        few, many = (planned(40, f"{key}={share}").serving.cache_tokens for share in (0.1, 0.3))
        assert few < many
