"""The fast forward of a layer is the layer's own, in values and gradients, for every family that it says it knows."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    GemmaConfig,
    LlamaConfig,
    MistralConfig,
    Qwen2Config,
    Qwen3Config,
)

from laurel.models.attention import Packing, register
from laurel.models.decoder import FAMILIES, Decoder, NotServed, adjacent
from laurel.models.kernels.paged_attention import Pages, paged_attention
from laurel.models.layer import FastLayer, train_fast
from laurel.models.paged import PAGE, PagedCache
from laurel.models.slots import cache_shape

SHAPE = {
    "vocab_size": 300, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 512, "pad_token_id": 0,
}  # fmt: skip
LLAMA3_ROPE = {
    "rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip
CONFIGS = {
    "llama": LlamaConfig(**SHAPE, rope_parameters=LLAMA3_ROPE),
    "mistral": MistralConfig(**SHAPE, sliding_window=None),
    "qwen2": Qwen2Config(**SHAPE),
    "qwen3": Qwen3Config(**SHAPE, head_dim=32),
    "gemma": GemmaConfig(**SHAPE, head_dim=32),
}


def _model(family: str) -> Any:
    register()
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(CONFIGS[family], attn_implementation="packed").eval()
    with torch.no_grad():
        for parameter in model.parameters():  # norms and biases that are not what they start as
            parameter.add_(torch.randn_like(parameter) * 0.05)
    return model


def test_every_family_is_tried() -> None:
    assert set(CONFIGS) == set(FAMILIES)


@pytest.mark.parametrize("family", FAMILIES)
def test_forward_and_gradients(family: str) -> None:
    model = _model(family)
    ids, bounds = torch.randint(1, 300, (1, 30)), torch.tensor([0, 10, 30])
    positions = torch.cat([torch.arange(10), torch.arange(20)])[None]

    def run() -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        model.zero_grad()
        packing = Packing.of(bounds, "cpu")
        output = model.model(input_ids=ids, position_ids=positions, use_cache=False, packing=packing)
        output.last_hidden_state.square().sum().backward()
        gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
        return output.last_hidden_state.detach(), gradients

    hidden, gradients = run()
    assert train_fast(model.model) is None
    attention = model.model.layers[0].self_attn
    assert adjacent([attention.q_proj.weight, attention.k_proj.weight, attention.v_proj.weight])
    fast_hidden, fast_gradients = run()
    torch.testing.assert_close(fast_hidden, hidden, atol=1e-5, rtol=1e-5)
    assert fast_gradients.keys() == gradients.keys()
    for name, gradient in gradients.items():
        torch.testing.assert_close(fast_gradients[name], gradient, atol=1e-4, rtol=1e-4, msg=name)


@pytest.mark.parametrize("family", FAMILIES)
def test_serving_over_pages(family: str) -> None:
    """A prompt at once, then token by token: the logits of the module's own forward over the whole."""
    model = _model(family)
    ids = torch.randint(1, 300, (1, 90))
    with torch.no_grad():
        model.config._attn_implementation = "sdpa"
        wanted = model(ids).logits[0]
    decoder = Decoder(model, 512)
    cache = PagedCache(cache_shape(model, 512), pages=4, dtype=torch.float32, device="cpu")
    table = torch.tensor([[3, 1]], dtype=torch.int32)
    packing = Packing.of(torch.tensor([0, 70]), "cpu")

    def place(positions: torch.Tensor) -> torch.Tensor:
        return table[0].long()[positions // PAGE] * PAGE + positions % PAGE

    def within(layer: int, query: Any, key: Any, value: Any, scale: float) -> torch.Tensor:
        from laurel.models.attention import attend_rows

        return attend_rows(query, key, value, packing, scale).flatten(1)

    with torch.inference_mode():
        positions = torch.arange(70)
        found = [decoder.logits(decoder(ids[0, :70], positions, place(positions), cache, within))]
        for at in range(70, 90):
            now = torch.tensor([at])
            pages = Pages(torch.zeros(1, dtype=torch.int32), (now + 1).int(), table)

            def over_pages(
                layer: int, query: Any, key: Any, value: Any, scale: float, pages: Pages = pages
            ) -> torch.Tensor:
                return paged_attention(query, *cache.planes[layer], pages, scale=scale, splits=1)

            found.append(decoder.logits(decoder(ids[0, at : at + 1], now, place(now), cache, over_pages)))
    torch.testing.assert_close(torch.cat(found), wanted, atol=1e-4, rtol=1e-4)


def test_another_kind_of_layer_is_left_alone() -> None:
    register()
    model = AutoModelForCausalLM.from_config(Gemma2Config(**SHAPE, head_dim=32))
    reason = train_fast(model.model)
    assert "gemma2 is none of llama" in str(reason)
    assert not isinstance(model.model.layers[0].forward, FastLayer)
    with pytest.raises(NotServed, match="gemma2"):
        Decoder(model, 512)
    llama = AutoModelForCausalLM.from_config(LlamaConfig(**SHAPE, mlp_bias=True))
    assert "bias" in str(train_fast(llama.model))
