import itertools

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    MistralConfig,
    Qwen2Config,
    Qwen3Config,
)

from laurel.models.attention import Bucket, Packing, packed_attention, register, use
from laurel.types import LaurelError

LENGTHS = [9, 1, 30, 12, 29, 10]
SHAPE = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
}


def build(kind, **more):
    register()
    torch.manual_seed(0)
    head = {"head_dim": 8} if kind is Qwen3Config else {}
    return AutoModelForCausalLM.from_config(kind(**SHAPE, **head, **more), attn_implementation="packed").eval()


def packed_inputs(lengths, seed=0):
    cu_seqlens = torch.tensor([0, *lengths]).cumsum(0)
    ids = torch.randint(1, 64, (1, sum(lengths)), generator=torch.Generator().manual_seed(seed))
    positions = torch.cat([torch.arange(n) for n in lengths])[None]
    packing = Packing.of(cu_seqlens, "cpu")
    return {"input_ids": ids, "position_ids": positions, "use_cache": False, "packing": packing}, cu_seqlens


def test_rows_are_bucketed_by_length():
    packing = Packing.of(torch.tensor([0, 3, 4, 8]), "cpu")  # lengths 3, 1, 4
    assert packing.buckets == (Bucket(2, 4), Bucket(1, 1))
    # rows of 4 and 3 tokens (the last one repeated), then the row of 1
    assert packing.padded.tolist() == [4, 5, 6, 7, 0, 1, 2, 2, 3]
    assert packing.place.tolist() == [4, 5, 6, 8, 0, 1, 2, 3]
    assert packing.max_seqlen == 4


def test_rows_of_one_length_need_no_copy():
    packing = Packing.of(torch.tensor([0, 3, 6]), "cpu")
    assert packing.buckets == (Bucket(2, 3),)
    assert packing.padded is None


@pytest.mark.parametrize("lengths", [LENGTHS, [8, 8, 8], [17]], ids=["ragged", "equal", "one"])
@pytest.mark.parametrize("kind", [LlamaConfig, Qwen2Config, Qwen3Config, MistralConfig])
def test_packed_rows_are_as_rows_alone(kind, lengths):
    """Logits and parameter gradients, against transformers' own eager attention on each row by itself."""
    module = build(kind, **({"sliding_window": None} if kind is MistralConfig else {}))
    inputs, cu_seqlens = packed_inputs(lengths)
    logits = module(**inputs).logits[0]
    logits.square().sum().backward()
    found = {name: p.grad.clone() for name, p in module.named_parameters()}
    module.zero_grad()
    use(module, "eager")
    rows = [
        module(input_ids=inputs["input_ids"][:, a:b], use_cache=False).logits[0]
        for a, b in itertools.pairwise(cu_seqlens)
    ]
    expected = torch.cat(rows)
    torch.testing.assert_close(logits, expected, atol=1e-5, rtol=0)
    expected.square().sum().backward()
    for name, parameter in module.named_parameters():
        torch.testing.assert_close(found[name], parameter.grad, atol=1e-4, rtol=1e-4, msg=lambda m, n=name: f"{n}: {m}")


def test_another_row_changes_nothing_at_all():
    """Exactly: the same bits whatever stands in the other rows."""
    module = build(LlamaConfig)
    inputs, cu_seqlens = packed_inputs(LENGTHS)
    other, _ = packed_inputs(LENGTHS, seed=1)
    start, end = cu_seqlens[3], cu_seqlens[4]
    other["input_ids"][:, start:end] = inputs["input_ids"][:, start:end]
    with torch.no_grad():
        a, b = (module(**x).logits[0] for x in (inputs, other))
    assert torch.equal(a[start:end], b[start:end])
    assert not torch.equal(a[:start], b[:start])


def test_gradients_are_the_same_bits_each_time():
    module = build(LlamaConfig)
    inputs, _ = packed_inputs(LENGTHS)
    found = []
    for _ in range(2):
        module.zero_grad()
        module(**inputs).logits.square().sum().backward()
        found.append([p.grad.clone() for p in module.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_a_window_shorter_than_a_row_is_refused():
    module = build(MistralConfig, sliding_window=16)
    inputs, _ = packed_inputs([16, 10])
    assert module(**inputs).logits.shape == (1, 26, 64)
    inputs, _ = packed_inputs([17, 10])
    with pytest.raises(LaurelError, match=r"sliding_window=16 .* row of 17 tokens"):
        module(**inputs)


def test_what_the_rows_are_must_be_said():
    q = torch.zeros(1, 2, 4, 8)
    with pytest.raises(ValueError, match="packing="):
        packed_attention(torch.nn.Identity(), q, q, q, None)
    one = torch.nn.Identity()
    alone = packed_attention(one, q, q, q + 1, None, cu_seqlens=torch.tensor([0, 4]))[0]
    assert alone.shape == (1, 4, 2, 8)
    with pytest.raises(ValueError, match="a batch of 2"):
        packed_attention(one, *[q.expand(2, -1, -1, -1)] * 3, None, cu_seqlens=torch.tensor([0, 4]))
    with pytest.raises(LaurelError, match="soft-capped"):
        packed_attention(one, q, q, q, None, cu_seqlens=torch.tensor([0, 4]), softcap=30.0)
