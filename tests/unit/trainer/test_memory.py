"""What each phase takes, by hand."""

import pytest
from unit.trainer.memory_cases import *  # noqa: F403
from unit.trainer.memory_cases import ACTOR, GIB, HALF, REF, ROLLOUT, SEVEN, WORK_G, WORK_L, WORK_P

from laurel.models.memory import Serving, Tokens
from laurel.trainer.memory import (
    Models,
    forward_tokens,
    models_of,
    phases,
    resident,
    shape_of,
)

WORDS, WORDS_7 = 151936, 152064  # of the vocabularies
HEAD, HEAD_7 = 151936 * 896, 152064 * 3584
NO_RECOMPUTE = "actor_rollout_ref.model.enable_gradient_checkpointing=False"
BUDGET = f"{ACTOR}.ppo_max_token_len_per_gpu"


def of(config, serving=Serving(8, 1024), **how):  # noqa: B008
    """The parts of each phase by name."""
    return {phase.name: dict(phase.parts) for phase in phases(config, models_of(config), serving, **how)}


def test_one_rank_holds_weights_masters_and_moments(settings):
    assert resident(settings("0.5b", *WORK_G), models_of(settings("0.5b", *WORK_G))) == {
        "actor's weights": 2 * HALF,
        "actor's masters and moments": 12 * HALF,
    }
    config = settings("7b", *WORK_L, f"{ACTOR}.fsdp_config.optimizer_offload=True")
    assert resident(config, models_of(config)) == {"actor's weights": 2 * SEVEN}


def test_a_critic_has_no_head_of_words_and_a_reference_no_masters(settings):
    config = settings("0.5b", *WORK_P)
    assert resident(config, models_of(config)) == {
        "actor's weights": 2 * HALF,
        "actor's masters and moments": 12 * HALF,
        "reference": 2 * HALF,
        "critic's weights": 2 * (HALF + 897),  # tied: the embedding is still there
        "critic's masters and moments": 12 * (HALF + 897),
    }
    big = settings("7b", *WORK_P)
    assert resident(big, models_of(big))["critic's weights"] == 2 * (SEVEN - HEAD_7 + 3585)


def test_ranks_share_masters_and_moments_and_each_engine_has_a_copy(settings):
    config = settings("7b", *WORK_L, f"{ACTOR}.use_kl_loss=True", ranks=8)
    assert resident(config, models_of(config)) == {
        "actor's masters": SEVEN / 2,
        "actor's moments": SEVEN,
        "engine's weights": 2 * SEVEN,
        "reference": SEVEN / 4,
    }
    halves = settings("7b", *WORK_L, f"{ACTOR}.fsdp_config.fsdp_size=2", ranks=8)
    assert resident(halves, models_of(halves))["actor's masters"] == 2 * SEVEN
    words = (f"{ACTOR}.fsdp_config.{name}=True" for name in ("optimizer_offload", "param_offload"))
    away = settings("7b", *WORK_L, *words, ranks=8)
    assert resident(away, models_of(away)) == {"engine's weights": 2 * SEVEN}


def test_a_cpu_computes_in_float32(settings):
    config = settings("0.5b", *WORK_G, "trainer.device=cpu")
    assert resident(config, models_of(config)) == {
        "actor's weights and gradients": 8 * HALF,
        "actor's moments": 8 * HALF,
    }


def test_micro_batches_are_whole_groups_of_the_longest_rows(settings):
    def tokens(budget, *words, **how):
        config = settings("0.5b", *WORK_G, f"{BUDGET}={budget}", *words)
        return forward_tokens(config, config.actor_rollout_ref.actor, **how)

    assert tokens(16_384) == Tokens(3 * 4224, 3 * 5120, 3 * 4096)
    assert tokens(65_536) == Tokens(12 * 4224, 12 * 5120, 12 * 4096)
    assert tokens(3000) == Tokens(128 + 4 * 512, 4 * 640, 4 * 512)  # a part of a group
    assert tokens(100) == Tokens(640, 640, 512)
    assert tokens(16_384, longest=True) == Tokens(16_384, 16_384, 16_384)
    assert tokens(100, longest=True) == Tokens(640, 640, 640)
    few = ("data.train_batch_size=2", f"{ACTOR}.ppo_mini_batch_size=1")
    assert tokens(65_536, *few) == Tokens(4224, 5120, 4096)  # an update has no more
    rows = tokens(65_536, f"{ACTOR}.ppo_micro_batch_size_per_gpu=16")
    assert rows == Tokens(2 * 4224, 2 * 5120, 2 * 4096)


def test_an_update_of_half_a_billion(settings):
    parts = of(settings("0.5b", *WORK_G, NO_RECOMPUTE, f"{BUDGET}=16384"))["actor's update"]
    computed, rows, sampled = 12_672, 15_360, 12_288
    layer = computed * (12 * 896 + 4 * 896 + 6 * 4864 + 4 * 14 + 8) + rows * 4 * 128
    assert parts == {
        "actor's weights": 2 * HALF,
        "actor's masters and moments": 12 * HALF,
        "gradients": 4 * HALF,
        "activations": 24 * layer + computed * (8 * 896 + 4 * 64 + 4) + sampled * 2 * 896,
        "logits": 6 * WORDS * 8192 + 4 * HEAD + sampled * 2 * 896,
    }
    assert sum(parts.values()) / GIB == pytest.approx(28.39, abs=0.01)


@pytest.mark.parametrize(("budget", "measured"), [(16_384, 28.7), (32_768, 43.7), (65_536, 70.5)])
def test_peaks_that_an_h200_measured(settings, budget, measured):
    """GiB of updates of work G with an older head (docs/benchmarks/h200_speed/exploration/2_train.log), which held 2.3
    GiB more than today's where there were three chunks. Nothing is fitted."""
    found = phases(settings("0.5b", *WORK_G, NO_RECOMPUTE, f"{BUDGET}={budget}"), _models(settings), Serving(8, 1024))
    assert found[-1].name == "actor's update"
    assert found[-1].peak / GIB == pytest.approx(measured, rel=0.07)


def test_the_peak_of_whole_steps_that_an_h200_measured(settings):
    """66.5 to 66.6 GiB over four steps of work G with a budget of 65,536 tokens (h200_speed/step_G.jsonl)."""
    config = settings("0.5b", *WORK_G, NO_RECOMPUTE, f"{BUDGET}=65536")
    found = phases(config, _models(settings), Serving(1024, 655_360))
    assert max(phase.peak for phase in found) / GIB == pytest.approx(66.6, rel=0.01)


def _models(settings):
    return models_of(settings("0.5b", *WORK_G))


def test_an_update_of_one_micro_batch_has_no_sums_of_gradients_beside_its_activations(settings):
    one = of(settings("0.5b", *WORK_G, NO_RECOMPUTE, f"{BUDGET}=65536", "data.train_batch_size=2"))["actor's update"]
    assert "gradients" not in one
    tiny = ("data.train_batch_size=1", f"{ROLLOUT}.n=2", "data.max_response_length=1", "data.max_prompt_length=1")
    config = settings("7b", *WORK_G, *tiny, f"{BUDGET}=65536", NO_RECOMPUTE)
    assert of(config)["actor's update"]["gradients"] == 4 * SEVEN  # what is left when all has gone back


def test_an_update_of_seven_billion_steps_in_parts(settings):
    words = (NO_RECOMPUTE, f"{BUDGET}=16384", f"{ACTOR}.fsdp_config.optimizer_offload=True")
    found = of(settings("7b", *WORK_L, *words))
    assert list(found) == ["rollout", "actor's update", "actor's optimizer step"]
    assert found["actor's update"]["gradients"] == 4 * SEVEN
    assert found["actor's optimizer step"] == {
        "actor's weights": 2 * SEVEN,
        "gradients": 4 * SEVEN,
        "masters and moments in use": 12 * HEAD_7,  # the embedding is the largest part
    }


def test_shards_are_gathered_layer_by_layer(settings):
    words = (NO_RECOMPUTE, f"{BUDGET}=16384")
    parts = of(settings("7b", *WORK_L, *words, ranks=8))["actor's update"]
    layer = models_of(settings("7b", *WORK_L)).actor.layer
    assert layer == 233_057_792
    assert parts["gathered layers"] == 2 * (2 * HEAD_7 + 3584) + 3 * 2 * layer + 6 * layer
    assert parts["gradients"] == SEVEN / 2
    whole = settings("7b", *WORK_L, *words, f"{ACTOR}.fsdp_config.reshard_after_forward=False", ranks=8)
    assert of(whole)["actor's update"]["gathered layers"] == 2 * (2 * HEAD_7 + 3584) + 29 * 2 * layer + 6 * layer


def test_phases_follow_the_algorithm(settings):
    budgets = (BUDGET, "critic.ppo_max_token_len_per_gpu", f"{ROLLOUT}.log_prob_max_token_len_per_gpu")
    words = [f"{key}=8192" for key in (*budgets, f"{REF}.log_prob_max_token_len_per_gpu")]
    assert list(of(settings("0.5b", *WORK_P, *words))) == [
        "rollout", "log-probs", "reference", "critic's update", "actor's update",
    ]  # fmt: skip
    assert list(of(settings("0.5b", *WORK_G, *words))) == ["rollout", "actor's update"]
    assert list(of(settings("0.5b", *WORK_G, *words, "trainer.val_only=True"))) == ["rollout"]
    critic = of(settings("0.5b", *WORK_P, *words))["critic's update"]
    assert "logits" not in critic
    assert critic["gradients"] == 4 * HALF


def test_forwards_for_log_probs_hold_a_chunk_of_logits(settings):
    config = settings("0.5b", *WORK_P, f"{ROLLOUT}.log_prob_max_token_len_per_gpu=32768", f"{BUDGET}=8192")
    rows = 42  # of 768 tokens
    assert of(config)["log-probs"]["logits"] == 4 * WORDS * 8192
    assert of(config)["log-probs"]["activations"] == rows * 256 * 6 * 896
    # With gradients in the logits: logits twice in bfloat16 and float32, and their probabilities
    words = ("algorithm.adv_estimator=optimal_token_baseline", f"{BUDGET}=8192")
    squares = settings("0.5b", *WORK_G, *words, f"{ROLLOUT}.log_prob_max_token_len_per_gpu=8192")
    assert of(squares)["log-probs"]["logits"] == 10 * WORDS * 4096


def test_an_engine_that_keeps_its_cache_takes_it_from_learning(settings):
    serving = Serving(64, 100_000)
    words = (NO_RECOMPUTE, f"{BUDGET}=16384")
    freed = of(settings("0.5b", *WORK_G, *words), serving)
    kept = of(settings("0.5b", *WORK_G, *words, f"{ROLLOUT}.free_cache_engine=False"), serving)
    assert kept["rollout"] == freed["rollout"]
    more = {
        name: kept["actor's update"][name] for name in kept["actor's update"].keys() - freed["actor's update"].keys()
    }
    assert more == {"KV cache": 100_000 * 2 * 24 * 2 * 64 * 2, "engine's logits": 4 * WORDS * 64 * 2}


def test_models_of_unknown_size(settings, tmp_path):
    assert models_of(settings("none", *WORK_G)) is None  # not here
    (tmp_path / "none").mkdir()
    (tmp_path / "none" / "config.json").write_text('{"model_type": "mamba"}')
    assert models_of(settings("none", *WORK_G)) is None
    known = settings("0.5b", *WORK_P)
    assert models_of(known) == Models(shape_of(known.actor_rollout_ref.model), shape_of(known.critic.model))
    smaller = settings("0.5b", *WORK_G, "actor_rollout_ref.model.override_config={num_hidden_layers: 2}")
    assert models_of(smaller).actor.layers == 2
