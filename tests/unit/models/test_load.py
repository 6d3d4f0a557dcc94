import json
import shutil

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from laurel.config.tree import Config, Model
from laurel.models.attention import Packing
from laurel.models.check import check
from laurel.models.load import check_served, inspect, load_model_config, load_policy, load_value_model, save_module
from laurel.models.tiny import write_tiny_model
from laurel.types import LaurelError


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_tiny_model(tmp_path_factory.mktemp("model") / "tiny", hidden=32, max_length=64)


def inputs(n=5):
    packing = Packing.of(torch.tensor([0, n]), "cpu")
    return {
        "input_ids": torch.arange(8, 8 + n)[None],
        "position_ids": torch.arange(n)[None],
        "use_cache": False,
        "packing": packing,
    }


def test_policy_is_the_model_on_disk(folder):
    policy = load_policy(Model(path=str(folder)), dtype=torch.float32)
    plain = AutoModelForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        torch.testing.assert_close(policy(**inputs()).logits, plain(inputs()["input_ids"]).logits, atol=1e-5, rtol=0)
    assert not policy.training
    assert policy.config._attn_implementation == "packed"
    assert load_policy(Model(path=str(folder)), dtype=torch.bfloat16).dtype == torch.bfloat16


@pytest.mark.parametrize("on", [True, False])
def test_gradient_checkpointing_computes_layers_again(folder, on):
    policy = load_policy(Model(path=str(folder), enable_gradient_checkpointing=on), dtype=torch.float32).train()
    calls = []
    policy.model.layers[0].mlp.register_forward_pre_hook(lambda *_: calls.append(1))
    policy(**inputs()).logits.sum().backward()
    assert len(calls) == (2 if on else 1)


def test_override_config(folder):
    config = load_model_config(Model(path=str(folder), override_config={"attention_dropout": 0.25}))
    assert config.attention_dropout == 0.25
    with pytest.raises(LaurelError, match=r"override_config.dropuot"):
        load_model_config(Model(path=str(folder), override_config={"dropuot": 0.1}))


def test_value_model_starts_at_zero_and_comes_back(folder, tmp_path):
    model = load_value_model(Model(path=str(folder)), dtype=torch.float32)
    assert model(**inputs()).tolist() == [[0.0] * 5]
    with torch.no_grad():
        model.value_head.weight.copy_(torch.linspace(-1, 1, 32))
        model.value_head.bias.fill_(0.5)
        model.model.norm.weight.mul_(2)
        expected = model(**inputs())
    save_module(model, tmp_path / "critic")
    again = load_value_model(Model(path=str(tmp_path / "critic")), dtype=torch.float32)
    with torch.no_grad():
        assert torch.equal(again(**inputs()), expected)
    half = load_value_model(Model(path=str(folder)), dtype=torch.bfloat16)
    assert (half.model.norm.weight.dtype, half.value_head.weight.dtype) == (torch.bfloat16, torch.float32)
    assert {name.split(".")[0] for name, _ in model.named_parameters()} == {"model", "value_head"}


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/nowhere/model", "model folder '/nowhere/model' does not exist"),
        (None, "model.path=None"),
    ],
)
def test_a_missing_model_is_named(path, said):
    with pytest.raises(LaurelError, match=said):
        load_policy(Model(path=path), dtype=torch.float32)


def test_a_hub_id_without_a_network_is_one_clear_error(monkeypatch):
    monkeypatch.setattr("laurel.models.hub.hub_answers", lambda: False)
    with pytest.raises(LaurelError, match=r"'nobody/nothing-here' is not in this node's cache .*local folder"):
        load_policy(Model(path="nobody/nothing-here"), dtype=torch.float32)


def test_a_folder_without_weights_is_named(folder, tmp_path):
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    with pytest.raises(LaurelError, match=r"model weights of .* could not be loaded"):
        load_policy(Model(path=str(tmp_path)), dtype=torch.float32)


def test_models_that_would_train_wrongly_are_refused():
    config = LlamaConfig()
    check_served(config)
    config.final_logit_softcapping = 30.0
    with pytest.raises(LaurelError, match=r"final_logit_softcapping=30.0"):
        check_served(config)
    config = LlamaConfig()
    config.layer_types = ["full_attention", "linear_attention"]
    with pytest.raises(LaurelError, match="linear_attention"):
        check_served(config)


def problems(path, response=16, **model):
    data = {"max_prompt_length": 16, "max_response_length": response}
    config = {"data": data, "actor_rollout_ref": {"model": {"path": str(path), **model}}}
    return [(problem.field, problem.cure) for problem in check(Config.model_validate(config))]


def test_inspect_says_in_the_driver_what_ranks_would(folder, tmp_path):
    inspect(Model(path=str(folder)))
    with pytest.raises(LaurelError, match=r"override_config.dropuot"):
        inspect(Model(path=str(folder), override_config={"dropuot": 0.1}))
    with pytest.raises(LaurelError, match=r"llama has an encoder"):
        inspect(Model(path=str(folder), override_config={"is_encoder_decoder": True}))


def test_check_reads_the_config_with_its_overrides(folder):
    ((field, cure),) = problems(folder, override_config={"attention_dropuot": 0.1})
    assert field == "actor_rollout_ref.model.override_config.attention_dropuot"
    assert "did you mean attention_dropout?" in cure
    ((field, cure),) = problems(folder, override_config={"is_encoder_decoder": True})
    assert (field, "has an encoder" in cure) == ("actor_rollout_ref.model.path", True)
    assert problems(folder, override_config={"attention_dropout": 0.1, "initializer_range": 0.01}) == []


def test_check_refuses_logits_that_change_after_the_head(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "soft")
    described = json.loads((folder / "config.json").read_text())
    (tmp_path / "soft" / "config.json").write_text(json.dumps(described | {"final_logit_softcapping": 30.0}))
    ((field, cure),) = problems(tmp_path / "soft")
    assert (field, "final_logit_softcapping=30.0" in cure) == ("actor_rollout_ref.model.path", True)
    assert problems(tmp_path / "soft", override_config={"final_logit_softcapping": None}) == []


def test_check_reads_what_the_cache_has_of_a_hub_id(monkeypatch, tmp_path):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    assert problems("org/name", response=49) == []  # never fetched: nothing to read yet
    snapshot = tmp_path / "models--org--name" / "snapshots" / "c0"
    snapshot.mkdir(parents=True)
    (tmp_path / "models--org--name" / "refs").mkdir()
    (tmp_path / "models--org--name" / "refs" / "main").write_text("c0")
    (snapshot / "config.json").write_text(json.dumps({"max_position_embeddings": 64}))
    assert [field for field, _ in problems("org/name", response=49)] == ["data.max_response_length"]
    assert problems("org/name", response=48) == []  # weights that are not there yet are fetched


def test_check_reads_the_folder(folder, tmp_path):
    assert problems(folder) == []
    ((field, cure),) = problems(folder, response=49)
    assert field == "data.max_response_length"
    assert "take 65 tokens" in cure
    assert "max_position_embeddings=64" in cure
    assert "to 48 or less" in cure
    assert problems(folder, response=49, override_config={"max_position_embeddings": 65}) == []
    ((field, cure),) = problems("/nowhere/model")
    assert (field, "does not exist" in cure) == ("actor_rollout_ref.model.path", True)

    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["BertForMaskedLM"]}))
    cures = " ".join(cure for _, cure in problems(tmp_path))
    assert all(part in cures for part in ("BertForMaskedLM", "no weights", "no tokenizer"))
    (tmp_path / "config.json").write_text("{")
    assert "config.json cannot be read" in " ".join(cure for _, cure in problems(tmp_path))
    (tmp_path / "config.json").unlink()
    assert "holds no config.json" in " ".join(cure for _, cure in problems(tmp_path))


def test_check_wants_a_model():
    ((problem),) = check(Config())
    assert problem.field == "actor_rollout_ref.model.path"
