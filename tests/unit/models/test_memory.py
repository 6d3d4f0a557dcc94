"""The counts of models/memory.py: by hand, and against the code that allocates, run on tensors without data."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from published_shapes import QWEN_05, QWEN_7
from unit.models.traced import traced

from laurel.config.tree import Rollout
from laurel.models import decoder, heads, paged
from laurel.models.memory import (
    FAST_FAMILIES,
    GIB,
    PAGE,
    Serving,
    Shape,
    Tokens,
    chunk_tokens,
    forward_parts,
    keepable,
    layer_held,
    logits_bytes,
    logits_of_a_slot,
    prefill_bytes,
    serving,
    serving_bytes,
    update_parts,
    usable,
)
from laurel.rollout.native.steps import sizes_up_to

SMALL = {
    "hidden_size": 1024, "num_hidden_layers": 4, "num_attention_heads": 16, "num_key_value_heads": 4,
    "intermediate_size": 3072, "vocab_size": 20000, "head_dim": 128, "pad_token_id": None, "bos_token_id": None,
    "eos_token_id": None,
}  # fmt: skip
GROUPS = Tokens(3 * (128 + 8 * 512), 3 * 8 * 640, 3 * 8 * 512)  # 3 groups of 8: prompts of 128, responses of 512


def update(fields: dict[str, Any], tokens: Tokens, **how: Any) -> float:
    """Bytes at the peak of a micro-batch that is not the first, on one rank."""
    shape = Shape.of(fields)
    return 18 * shape.parameters + sum(update_parts(shape, tokens, **{"recompute": False, **how}).values())


@pytest.mark.parametrize(
    ("fields", "parameters"),
    [
        (QWEN_05, 494_032_768),
        (QWEN_7, 7_615_616_512),
        (  # Qwen3-0.6B
            {**SMALL, "model_type": "qwen3", "num_hidden_layers": 28, "num_key_value_heads": 8, "vocab_size": 151936,
             "tie_word_embeddings": True},
            596_049_920,
        ),
        (  # Llama-3-8B
            {"model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
             "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256},
            8_030_261_248,
        ),
        (  # gemma-2b, whose config.json does not say that it is tied
            {"model_type": "gemma", "hidden_size": 2048, "num_hidden_layers": 18, "num_attention_heads": 8,
             "num_key_value_heads": 1, "intermediate_size": 16384, "vocab_size": 256000, "head_dim": 256},
            2_506_172_416,
        ),
    ],
)  # fmt: skip
def test_published_models_have_as_many_parameters_as_published(fields, parameters):
    assert Shape.of(fields).parameters == parameters


@pytest.mark.parametrize("biases", [{}, {"attention_bias": True}, {"attention_bias": True, "mlp_bias": True}])
def test_biases_are_counted(biases):
    fields = {**SMALL, "model_type": "llama", "tie_word_embeddings": False, **biases}
    shape = Shape.of(fields)
    fast = not biases.get("mlp_bias")
    assert traced(fields, Tokens(64, 64, 32), fast=fast).parameters == shape.parameters
    assert shape.fast is fast


def test_what_is_not_counted_is_refused():
    with pytest.raises(ValueError, match="experts"):
        Shape.of({**SMALL, "num_experts": 8})
    with pytest.raises(KeyError):
        Shape.of({"model_type": "mamba"})


def test_half_a_billion_by_hand():
    shape = Shape.of(QWEN_05)
    assert shape.embedding == 151936 * 896 == 136_134_656
    # queries, keys, values: 896 * 18 * 64 and their biases; out 896 * 896; MLP 3 * 896 * 4864; two norms
    assert shape.layer == 1_032_192 + 1152 + 802_816 + 13_074_432 + 1792
    assert shape.cache_per_token == 2 * 24 * 2 * 64
    # A token: 12 * 896 + 4 * 896 + 6 * 4864 + 4 * 14 + 8, and 4 * 128 for keys and values
    assert layer_held(shape, Tokens(1, 1, 1)) == 10_752 + 3584 + 29_184 + 64 + 512
    assert layer_held(shape, Tokens(10, 12, 1)) == 10 * 43_584 + 12 * 512
    assert logits_bytes(shape, 8192) == 6 * 151936 * 8192 + 4 * 136_134_656 + 2 * 896 * 8192
    assert logits_bytes(shape, 100) == 6 * 151936 * 100 + 4 * 136_134_656 + 2 * 896 * 100


def test_seven_billion_by_hand():
    shape = Shape.of(QWEN_7)
    assert (shape.embedding, shape.backbone) == (544_997_376, 7_615_616_512 - 544_997_376)
    assert shape.cache_per_token == 2 * 28 * 4 * 128
    assert layer_held(shape, Tokens(1, 1, 1)) == 43_008 + 14_336 + 113_664 + 112 + 8 + 2048
    parts = update_parts(shape, Tokens(8192, 8192, 8192), recompute=True)
    # Inputs of 28 layers, the last sum and its norm, rotary tables, states; the head
    assert parts["activations"] == 8192 * (28 * 4 * 3584 + 8 * 3584 + 516 + 2 * 3584)
    assert parts["logits"] == 6 * 152064 * 8192 + 4 * 544_997_376 + 2 * 3584 * 8192


def test_a_small_vocabulary_leaves_the_last_layer_as_the_fullest_moment():
    shape = Shape.of({**QWEN_7, "vocab_size": 2000})
    parts = update_parts(shape, Tokens(8704, 12288, 8192), recompute=False)
    held = 28 * layer_held(shape, Tokens(8704, 12288, 8192))
    assert parts == {"activations": held + 4 * (3584 + 18944) * 8704}


def test_logits_are_kept_in_whole_chunks():
    shape, word = Shape.of(QWEN_05), 151936
    rest = 4 * shape.embedding + 2 * 896 * 24576
    assert logits_bytes(shape, 24576) == 6 * word * 8192 + rest
    assert logits_bytes(shape, 24576, keep=16_383) == 4 * word * 8192 * 2  # one chunk is held while another comes
    assert logits_bytes(shape, 24576, keep=24_576) == word * (4 * 24_576 + 2 * 8192) + rest
    least = logits_bytes(shape, 24576)
    assert keepable(shape, 24_576, word * (4 * 24_576 - 4 * 8192)) == 24_576
    assert keepable(shape, 24_576, word * (4 * 24_576 - 4 * 8192) - 1) == 16_384
    assert keepable(shape, 24_576, 4 * word * 16_384 - least) == 8192
    assert keepable(shape, 24_576, -1.0) == 0


@pytest.mark.parametrize(
    ("groups", "keep", "measured"),
    [(3, 1 << 30, 31.6), (6, 1 << 30, 51.2), (12, 0, 68.5), (12, 1 << 30, 90.4), (19, 1 << 30, 136.2)],
)
def test_what_an_h200_took_to_update(groups, keep, measured):
    """GiB at the peak of updates of Qwen2.5-0.5B's shape, with budgets of 16,384 to 98,304 tokens
    (docs/benchmarks/h200_speed/exploration/4_train.log). Nothing is fitted. Where no logits were kept the head then
    had a chunk's gradient beside that of the next one."""
    tokens = Tokens(groups * 4224, groups * 5120, groups * 4096)
    then = 0 if keep else 2 * 151936 * 8192
    assert (update(QWEN_05, tokens, keep=keep) + then) / GIB == pytest.approx(measured, rel=0.03)


# --- against the code -------------------------------------------------------------------------------------------------


def test_numbers_that_other_files_have_too():
    assert FAST_FAMILIES == decoder.FAMILIES
    assert PAGE == paged.PAGE
    for words in (2000, 32_000, 151_936, 256_000):
        assert chunk_tokens(words) == heads.chunk_tokens(words, torch.device("cuda"))


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("family", FAST_FAMILIES)
def test_an_update_of_each_family(family, recompute):
    fields = {**SMALL, "model_type": family, "tie_word_embeddings": family == "gemma"}
    found = traced(fields, GROUPS, recompute=recompute)
    shape = Shape.of(fields)
    assert found.parameters == shape.parameters
    assert found.loaded == pytest.approx(14 * shape.parameters, rel=1e-3)
    assert found.update == pytest.approx(update(fields, GROUPS, recompute=recompute), rel=0.01)
    forward = 14 * shape.parameters + sum(forward_parts(shape, GROUPS).values())
    assert found.forward == pytest.approx(forward, rel=0.05)


@pytest.mark.parametrize("keep", [0, 8192, 1 << 30])
def test_an_update_of_half_a_billion(keep):
    tokens = Tokens(6 * 4224, 6 * 5120, 6 * 4096)
    found = traced(QWEN_05, tokens, keep=keep)
    assert found.update == pytest.approx(update(QWEN_05, tokens, keep=keep), rel=0.001)


@pytest.mark.parametrize("recompute", [False, True])
def test_an_update_of_a_critic(recompute):
    found = traced(QWEN_05, GROUPS, recompute=recompute, value_model=True)
    shape = Shape.of(QWEN_05)
    assert found.parameters == shape.backbone + 897
    parts = update_parts(shape, GROUPS, recompute=recompute, value_model=True)
    assert "logits" not in parts
    assert found.update == pytest.approx(18 * (shape.backbone + 897) + sum(parts.values()), rel=0.01)


def test_an_update_whose_fullest_moment_is_a_layer():
    fields = {**SMALL, "model_type": "llama", "vocab_size": 1000, "tie_word_embeddings": False}
    for recompute in (False, True):
        found = traced(fields, GROUPS, recompute=recompute)
        assert found.update == pytest.approx(update(fields, GROUPS, recompute=recompute), rel=0.03)


def test_unknown_layers_are_not_underestimated():
    fields = {**SMALL, "model_type": "llama", "mlp_bias": True, "tie_word_embeddings": False}
    for tokens in (GROUPS, Tokens(15_360, 15_360, 12_288)):
        found = traced(fields, tokens, fast=False)
        assert found.update <= update(fields, tokens) <= 1.2 * found.update
        again = traced(fields, tokens, fast=False, recompute=True)
        assert 0.99 * again.update <= update(fields, tokens, recompute=True) <= 1.2 * again.update


# --- sampling ---------------------------------------------------------------------------------------------------------


def serve(tokens: float, **more: Any) -> Serving:
    """In memory for so many tokens of 10,000 bytes beside a prefill, for 50 sequences of up to 100 tokens."""
    settings = {"max_len": 100, "max_slots": None, "token_bytes": 10_000, "vocabulary": 4, "logits": 2.0, **more}
    return serving(memory=tokens * 10_000 + 500, sequences=50, prefill=500.0, **settings)


def test_slots_hold_sequences_at_sixty_percent_of_their_longest():
    # Of 10,000 bytes a token; a slot takes 4 * 4 * 2 + 8 * 100 = 832 bytes beside its cache
    assert serve(1000) == Serving(16, 998)
    assert serve(1000, paged=False) == Serving(9, 999)
    assert serve(1e6) == Serving(50, 50 * 128)  # no more slots than sequences, no more pages than slots can fill
    assert serve(1000, max_slots=3) == Serving(3, 3 * 128)
    assert serve(1000, max_slots=100) == Serving(100, 991)


def test_one_sequence_always_has_its_pages():
    assert serve(3) == Serving(1, 128)
    assert serve(-5, max_slots=2) == Serving(2, 128)
    settings = {"max_len": 640, "max_slots": None, "token_bytes": 1, "vocabulary": 1, "logits": 2.0, "prefill": 0.0}
    assert serving(memory=1e9, sequences=5000, **settings).slots == 1024


def test_what_sampling_takes_beside_the_cache():
    assert serving_bytes(1000, 2.0, 4, 100, 7.0) == {"logits": 4.0 * 1000 * 4 * 2, "sampling": 7.0 + 8 * 4 * 100}
    assert prefill_bytes(Shape.of(QWEN_05), 10) == 10 * (8 * 896 + 2 * 896 + 4 * 128 + 6 * 4864)


@pytest.mark.parametrize(
    ("rollout", "validates", "rows"),
    [
        ({"n": 8}, False, 2),  # the graph's, and the first step's before it is captured
        ({"n": 8}, True, 3),  # validation has one sample of each prompt
        ({"n": 8, "val_kwargs": {"n": 4}}, True, 2),
        ({"n": 1}, False, 3),
        ({"n": 8, "top_p": 0.9}, False, 16),
        ({"n": 8, "val_kwargs": {"n": 4, "do_sample": True, "top_k": 5}}, True, 16),
        ({"n": 8, "val_kwargs": {"n": 4, "top_k": 5}}, True, 2),  # greedy
    ],
)
def test_rows_of_logits_for_each_slot(rollout, validates, rows):
    assert logits_of_a_slot(Rollout.model_validate(rollout), validates=validates) == rows


def test_graphs_of_all_sizes_keep_their_logits_where_tokens_are_not_drawn_in_them():
    for slots in (8, 100, 512, 1024):
        assert sum(sizes_up_to(slots)) <= 6.1 * slots


def test_what_an_h200_took_to_sample():
    """GiB at the peak of decoding 1,024 sequences of 128 and 512 tokens in groups of 8, weights included."""
    shape = Shape.of(QWEN_05)
    cache = 1024 * 640 * 2 * shape.cache_per_token
    rest = serving_bytes(shape.vocabulary, 2.0, 1024, 640, prefill_bytes(shape, 8192))
    assert (2 * shape.parameters + cache + sum(rest.values())) / GIB == pytest.approx(9.78, rel=0.02)


def test_what_of_a_gpu_can_be_used():
    assert usable(101 * GIB) == pytest.approx(92 * GIB)
    assert usable(0) == 0
