import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from laurel.models.served import unserved
from laurel.models.slots import CacheShape, Run, SlotCache, SlotStep, slots_attention


class Layer(torch.nn.Module):
    layer_idx = 1


def naive(query, keys, values):
    """One query (Hq, D) over keys and values (L, Hkv, D), in float64, one head at a time."""
    group = query.shape[0] // keys.shape[1]
    rows = []
    for head, one in enumerate(query.double()):
        k, v = keys[:, head // group].double(), values[:, head // group].double()
        rows.append(torch.softmax(k @ one / query.shape[1] ** 0.5, 0) @ v)
    return torch.stack(rows)


def check(found, query, keys, values):
    torch.testing.assert_close(found.double(), naive(query, keys, values), atol=1e-6, rtol=1e-5)


@pytest.fixture
def cache():
    return SlotCache(
        CacheShape(layers=2, kv_heads=2, head_dim=8), slots=5, max_len=12, dtype=torch.float32, device="cpu"
    )


def attend(cache, positions, runs, seed):
    generator = torch.Generator().manual_seed(seed)
    tokens = len(positions) + sum(len(run.slots) * run.length for run in runs)
    q, k, v = (torch.randn(1, heads, tokens, 8, generator=generator) for heads in (6, 2, 2))
    step = SlotStep(cache, torch.tensor(positions, dtype=torch.int64), runs)
    out, _ = slots_attention(Layer(), q, k, v, None, slots=step, scaling=8**-0.5)
    assert step.calls == 1
    return step, out[0], q[0].transpose(0, 1), k[0].transpose(0, 1), v[0].transpose(0, 1)


def test_prefill_chunk_and_decode_equal_attention_written_out(cache):
    # two prompts of 4 into slots 0 and 1, one of 3 into slot 2
    step, out, q, k, v = attend(cache, [], (Run((0, 1), 0, 4), Run((2,), 0, 3)), seed=0)
    assert step.position_ids.tolist() == [[0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2]]
    for first, length in ((0, 4), (4, 4), (8, 3)):
        for token in range(first, first + length):
            check(out[token], q[token], k[first : token + 1], v[first : token + 1])
    # slots 0 and 1 decode at 4, while slot 2's prompt goes on with two more tokens
    history = [(k[0:4], v[0:4]), (k[4:8], v[4:8]), (k[8:11], v[8:11])]
    step, out, q, k, v = attend(cache, [4, 4], (Run((2,), 3, 2),), seed=1)
    assert step.mask is None
    assert cache.data.nbytes == 5 * 12 * cache.shape.bytes_per_token(torch.float32)
    assert step.position_ids.tolist() == [[4, 4, 3, 4]]
    for token, slot, new in ((0, 0, slice(0, 1)), (1, 1, slice(1, 2)), (2, 2, slice(2, 3)), (3, 2, slice(2, 4))):
        keys, values = torch.cat([history[slot][0], k[new]]), torch.cat([history[slot][1], v[new]])
        check(out[token], q[token], keys, values)


def test_slots_of_different_lengths_decode_together(cache):
    _, _, _, k0, v0 = attend(cache, [], (Run((0,), 0, 7), Run((1,), 0, 2)), seed=2)
    step, out, q, k, v = attend(cache, [7, 2], (), seed=3)
    assert step.mask.shape == (2, 1, 1, 8)
    for token, past in ((0, slice(0, 7)), (1, slice(7, 9))):
        keys, values = torch.cat([k0[past], k[token : token + 1]]), torch.cat([v0[past], v[token : token + 1]])
        check(out[token], q[token], keys, values)


def test_a_slot_is_copied_saved_and_written_whole(cache):
    _, _, _, k, v = attend(cache, [], (Run((0,), 0, 3),), seed=4)
    cache.copy(0, [2, 3], 3)
    cache.write(4, cache.read(0, 2))
    for slot, length in ((2, 3), (3, 3), (4, 2)):
        assert torch.equal(cache.planes[2][slot, :length], k[:length])
        assert torch.equal(cache.planes[3][slot, :length], v[:length])
        assert int(cache.planes[2][slot, length:].count_nonzero()) == 0


def test_decode_reads_no_further_than_the_longest_slot(cache):
    """Whatever stands behind it in the cache, as a longer sequence left it, does not matter."""
    attend(cache, [], (Run((0,), 0, 3),), seed=5)
    cache.data[:, 0, 4:] = float("nan")
    _, out, *_ = attend(cache, [3], (), seed=6)
    assert bool(out.isfinite().all())


def test_grouped_heads_are_rows_of_one_query():
    """The folding of query heads agrees with torch's own grouped attention."""
    q, k = torch.randn(1, 6, 1, 8), torch.randn(1, 2, 5, 8)
    folded = scaled_dot_product_attention(q.view(1, 2, 3, 8), k, k).view(1, 6, 1, 8)
    torch.testing.assert_close(folded, scaled_dot_product_attention(q, k, k, enable_gqa=True))


def test_attention_without_a_step_is_refused():
    with pytest.raises(ValueError, match="needs slots="):
        slots_attention(Layer(), *(torch.zeros(1, 2, 1, 8),) * 3, None)


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"model_type": "llama"}, None),
        ({"model_type": "mistral", "sliding_window": 4096}, None),
        ({"model_type": "mistral", "sliding_window": 64}, "sliding_window=64, shorter than max_len=100"),
        ({"model_type": "qwen2", "sliding_window": 64, "use_sliding_window": False}, None),
        ({"sliding_window": 64, "layer_types": ["full_attention"]}, None),
        ({"sliding_window": 64, "layer_types": ["full_attention", "sliding_attention"]}, "sliding_window=64"),
        ({"model_type": "qwen3_5", "layer_types": ["linear_attention"]}, "layers of type linear_attention"),
        ({"model_type": "gemma2", "attn_logit_softcapping": 50.0}, "attn_logit_softcapping=50.0"),
        ({"model_type": "t5", "is_encoder_decoder": True}, "encoder-decoder"),
        ({"rope_scaling": {"type": "dynamic"}, "max_position_embeddings": 99}, "dynamic rope"),
        ({"rope_parameters": {"rope_type": "longrope", "original_max_position_embeddings": 100}}, None),
        ({"rope_parameters": {"rope_type": "llama3"}, "max_position_embeddings": 10}, None),
    ],
)
def test_what_cannot_be_served_is_told_from_the_config(config, reason):
    found = unserved(config, 100)
    assert found is None if reason is None else reason in found
