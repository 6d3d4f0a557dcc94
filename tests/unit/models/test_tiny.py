from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from laurel.models.tiny import CHARACTERS, warm_start, write_tiny_model
from laurel.types import LaurelError

DIGITS = "0123456789+="


def weights(folder):
    return AutoModelForCausalLM.from_pretrained(folder).state_dict()


@pytest.mark.parametrize(("architecture", "kind"), [("llama", "LlamaForCausalLM"), ("qwen2", "Qwen2ForCausalLM")])
def test_the_folder_loads_as_the_architecture_asked_for(tmp_path, architecture, kind):
    folder = write_tiny_model(tmp_path / "m", characters=DIGITS, hidden=32, layers=3, architecture=architecture)
    module = AutoModelForCausalLM.from_pretrained(folder)
    assert type(module).__name__ == kind
    config = module.config
    assert (config.hidden_size, config.num_hidden_layers, config.vocab_size) == (32, 3, 8 + len(DIGITS))
    assert (config.num_attention_heads, config.num_key_value_heads) == (4, 2)
    assert (config.eos_token_id, config.pad_token_id) == (2, 0)
    assert module.generation_config.eos_token_id == 2
    assert module.dtype == torch.float32


def test_the_seed_alone_decides_the_weights(tmp_path):
    state = torch.get_rng_state()
    a, b, c = (weights(write_tiny_model(tmp_path / n, seed=s)) for n, s in (("a", 0), ("b", 0), ("c", 1)))
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert not torch.equal(a["model.embed_tokens.weight"], c["model.embed_tokens.weight"])
    assert torch.equal(torch.get_rng_state(), state)


def test_each_character_is_one_token(tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(write_tiny_model(tmp_path / "m"))
    text = "Ab 1+2=\n3"
    ids = tokenizer(text)["input_ids"]
    assert ids == [8 + CHARACTERS.index(c) for c in text]
    assert tokenizer.decode(ids) == text
    assert tokenizer("\u00e9")["input_ids"] == [3]
    assert (tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id) == (0, 1, 2)


def test_the_chat_template(tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(write_tiny_model(tmp_path / "m"))
    messages = [
        {"role": "user", "content": "1"},
        {"role": "assistant", "content": "2"},
        {"role": "user", "content": "3"},
    ]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert text == "<bos><|user|>1<|assistant|>2<eos><|user|>3<|assistant|>"
    ids = tokenizer.apply_chat_template(messages[:1], add_generation_prompt=True, return_dict=False)
    assert ids == [1, 5, 8 + CHARACTERS.index("1"), 6]
    assert tokenizer.decode([*ids, 2], skip_special_tokens=True) == "1"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"hidden": 30}, "hidden=30 must be a multiple of heads=4"),
        ({"kv_heads": 3}, "and heads of kv_heads=3"),
        ({"characters": "abca"}, r"repeats \['a'\]"),
        ({"architecture": "gpt2"}, "architecture='gpt2' is unknown; use 'llama' or 'qwen2'"),
    ],
)
def test_bad_arguments_are_named(tmp_path, settings, message):
    with pytest.raises(LaurelError, match=message):
        write_tiny_model(tmp_path / "m", **settings)


def test_a_warm_start_learns_its_pairs_and_is_repeatable(tmp_path):
    pairs = [(f"{a}+{b}=", str(a + b)) for a in range(5) for b in range(5)]
    losses = []
    for name in ("a", "b"):
        folder = write_tiny_model(tmp_path / name, characters=DIGITS, hidden=64)
        losses.append(warm_start(folder, pairs, 300, lr=3e-3))
    assert losses[0] == losses[1]
    assert losses[0] < 0.1
    a, b = weights(tmp_path / "a"), weights(tmp_path / "b")
    assert all(torch.equal(a[name], b[name]) for name in a)

    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "a")
    module = AutoModelForCausalLM.from_pretrained(tmp_path / "a")
    right = 0
    for question, answer in pairs:
        ids = tokenizer.apply_chat_template(
            [{"role": "user", "content": question}], add_generation_prompt=True, return_dict=False
        )
        out = module.generate(torch.tensor([ids]), max_new_tokens=4, do_sample=False)[0, len(ids) :].tolist()
        right += out == [*tokenizer(answer)["input_ids"], 2]
    assert right >= 22


def test_a_warm_start_needs_pairs_and_steps(tmp_path):
    with pytest.raises(LaurelError, match="0 pairs and steps=1"):
        warm_start(tmp_path, [], 1)
