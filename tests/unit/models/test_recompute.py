"""Checkpointing works for layers whose forward was replaced, however transformers does it for its own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, Qwen2Config

from laurel.config.tree import Model
from laurel.models.attention import Packing, register
from laurel.models.layer import FastLayer, train_fast
from laurel.models.load import _prepared

CONFIG = {
    "vocab_size": 50, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "pad_token_id": 0, "bos_token_id": None, "eos_token_id": None,
}  # fmt: skip


def model(*, recompute: bool) -> Any:
    register()
    torch.manual_seed(0)
    made = AutoModelForCausalLM.from_config(Qwen2Config(**CONFIG), attn_implementation="packed")
    made = _prepared(made, Model(path="none", enable_gradient_checkpointing=recompute))
    assert train_fast(made.model) is None
    return made


def run(made: Any) -> torch.Tensor:
    packing = Packing.of(torch.tensor([0, 4, 10]), "cpu")
    places = torch.cat([torch.arange(4), torch.arange(6)])[None]
    ids = torch.arange(1, 11)[None]
    return made.model(input_ids=ids, position_ids=places, use_cache=False, packing=packing).last_hidden_state


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One entry for each forward of a layer."""
    counted: list[int] = []
    forward = FastLayer.__call__

    def counting(self: FastLayer, *args: Any, **kwargs: Any) -> torch.Tensor:
        counted.append(self.layer.self_attn.layer_idx)
        return forward(self, *args, **kwargs)

    monkeypatch.setattr(FastLayer, "__call__", counting)
    return counted


def test_layers_are_computed_again_going_back_and_give_the_same_gradients(calls):
    gradients = {}
    for recompute in (False, True):
        made = model(recompute=recompute).train()
        calls.clear()
        run(made).square().sum().backward()
        assert calls == [0, 1, 2] + ([2, 1, 0] if recompute else [])
        gradients[recompute] = {name: p.grad for name, p in made.model.named_parameters()}
    for name, gradient in gradients[False].items():
        torch.testing.assert_close(gradients[True][name], gradient, msg=name)


def test_without_gradients_or_training_there_is_nothing_to_compute_again(calls):
    made = model(recompute=True).train()
    with torch.no_grad():
        run(made)
    assert calls == [0, 1, 2]
    run(made.eval()).sum().backward()
    assert calls == [0, 1, 2, 0, 1, 2]


def test_the_layer_s_own_switch_is_off_so_that_nothing_is_done_twice():
    assert [layer.gradient_checkpointing for layer in model(recompute=True).model.layers] == [False] * 3
