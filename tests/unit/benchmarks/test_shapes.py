import json

import pytest
import torch

from benchmarks.shapes import SHAPES, fields_of, name_of, random_module, sizes_of, write_folder
from laurel.models.slots import cache_shape


@pytest.mark.parametrize("changes", [{}, {"tie_word_embeddings": False}, {"num_key_value_heads": 4}])
def test_sizes_are_those_of_the_module(changes):
    fields = {**fields_of("tiny"), **changes}
    module = random_module(fields, device="cpu", dtype=torch.float32)
    sizes = sizes_of(fields)
    embedding = module.get_input_embeddings().weight.numel()
    assert sizes.embedding == sizes.head == embedding == 512 * 64
    assert sizes.backbone == sum(p.numel() for p in module.model.parameters()) - embedding
    assert sizes.multiplying == sizes.backbone + embedding
    assert sizes.width == 64
    assert cache_shape(module, 64).bytes_per_token(torch.bfloat16) == 2 * sizes.cache_per_token
    assert 0.018 < float(module.model.layers[0].mlp.up_proj.weight.detach().std()) < 0.022, (
        "weights are drawn, not left at 0"
    )


def test_published_models_have_the_parameters_that_their_names_say():
    half, seven = sizes_of(fields_of("0.5b")), sizes_of(fields_of("7b"))
    assert half.backbone + half.embedding == 494_032_768
    assert seven.backbone + 2 * seven.embedding == 7_615_616_512
    assert half.cache_per_token == 2 * 24 * 2 * 64


def test_a_config_file_is_read_with_the_ids_of_our_tokenizer(tmp_path):
    path = tmp_path / "qwen05.json"
    published = {"model_type": "qwen2", "torch_dtype": "bfloat16", "bos_token_id": 151643, "eos_token_id": 151645}
    path.write_text(json.dumps({**published, **SHAPES["0.5b"]}))
    fields = fields_of(str(path))
    assert name_of(str(path)) == "qwen05"
    assert (fields["pad_token_id"], fields["bos_token_id"], fields["eos_token_id"]) == (0, 1, 2)
    assert "torch_dtype" not in fields
    assert sizes_of(fields) == sizes_of(fields_of("0.5b"))
    with pytest.raises(SystemExit, match=r"no such shape or file; use tiny, 0\.5b, 7b"):
        fields_of("8b")


def test_a_folder_is_made_once_and_anew_when_its_shape_changes(tiny, monkeypatch):
    weights = tiny / "model.safetensors"
    made = weights.stat().st_mtime_ns
    assert write_folder("tiny", tiny.parent) == tiny
    assert weights.stat().st_mtime_ns == made
    monkeypatch.setitem(SHAPES, "tiny", {**SHAPES["tiny"], "num_hidden_layers": 1})
    bare = write_folder("tiny", tiny.parent, weights=False)
    names = sorted(path.name for path in bare.iterdir())
    assert names == ["config.json", "shape.json", "tokenizer.json", "tokenizer_config.json"]
    assert json.loads((bare / "config.json").read_text())["num_hidden_layers"] == 1
    assert [path.name for path in tiny.parent.iterdir() if path.name.startswith("tmp")] == []
