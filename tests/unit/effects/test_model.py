"""Effects of actor_rollout_ref.model.* and critic.model.*: on the module, on tokens, on what a checkpoint describes."""

import json
import shutil

import pytest
import torch
from unit.effects.cases import batch_of, noise
from unit.effects.registry import effect

from laurel.batch.pack import rank_shares
from laurel.learner.learner import PolicyLearner, ValueLearner
from laurel.models.load import backbone_of
from laurel.models.tokenizer import load_tokenizer
from laurel.trainer.build import prepare
from laurel.types import LaurelError

ACTOR, CRITIC = "actor_rollout_ref.model", "critic.model"
CUSTOM_CODE = """
from transformers import LlamaConfig, LlamaForCausalLM, LlamaModel

class OwnConfig(LlamaConfig):
    model_type = "own"

class OwnModel(LlamaModel):
    config_class = OwnConfig

class OwnForCausalLM(LlamaForCausalLM):
    config_class = OwnConfig
"""


def each(name):
    return effect(f"{ACTOR}.{name}", f"{CRITIC}.{name}")


def learner_of(key, config):
    return PolicyLearner("actor", config) if key.startswith(ACTOR) else ValueLearner(config)


def embedding(learner):
    return backbone_of(learner.module).embed_tokens.weight.detach()


@each("path")
def test_path_decides_the_weights(key, settings, inputs):
    model, other = (embedding(learner_of(key, settings(f"{key}={inputs}/{name}"))) for name in ("model", "other"))
    assert torch.equal(model, embedding(PolicyLearner("ref", settings())))
    assert not torch.equal(model, other)


@effect(f"{CRITIC}.path")
def test_a_critic_of_its_own_leaves_the_actor_alone(key, settings, inputs):
    config = settings(f"{key}={inputs}/other")
    assert not torch.equal(embedding(PolicyLearner("actor", config)), embedding(ValueLearner(config)))
    plain = settings()
    assert torch.equal(embedding(PolicyLearner("actor", plain)), embedding(ValueLearner(plain)))


@effect(f"{ACTOR}.tokenizer_path")
def test_tokenizer_path_decides_the_token_ids(key, settings, inputs):
    own, other = (
        prepare(config).train_prompts[3].input_ids for config in (settings(), settings(f"{key}={inputs}/other"))
    )
    assert own[:2] == other[:2]  # <bos><|user|>: special tokens come first in both
    assert own[2] != other[2]


@effect(f"{ACTOR}.custom_chat_template")
def test_custom_chat_template_renders_the_prompts(key, settings):
    def text(config):
        return load_tokenizer(config.actor_rollout_ref.model).decode(prepare(config).train_prompts[3].input_ids)

    assert text(settings()) == "<bos><|user|>3+3=<|assistant|>"
    assert text(settings(f"{key}='Q: {{{{ messages[0].content }}}} A:'")) == "Q: 3+3= A:"


@effect(f"{CRITIC}.tokenizer_path")
def test_the_critic_s_checkpoint_has_its_own_tokenizer(key, settings, inputs, tmp_path):
    vocabularies = {}
    for name in ("model", "other"):
        ValueLearner(settings(f"{key}={inputs}/{name}")).save(tmp_path / name)
        stored = json.loads((tmp_path / name / "huggingface" / "tokenizer.json").read_text())
        vocabularies[name] = stored["model"]["vocab"]
        assert vocabularies[name] == json.loads((inputs / name / "tokenizer.json").read_text())["model"]["vocab"]
    assert vocabularies["model"] != vocabularies["other"]


@effect(f"{CRITIC}.custom_chat_template")
def test_the_critic_s_checkpoint_has_its_own_chat_template(key, settings, tmp_path):
    for name, template in (("one", "first"), ("two", "second")):
        ValueLearner(settings(f"{key}={template}")).save(tmp_path / name)
        assert (tmp_path / name / "huggingface" / "chat_template.jinja").read_text() == template


@each("trust_remote_code")
def test_code_of_a_model_runs_only_if_trusted(key, settings, inputs, tmp_path, monkeypatch):
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.syspath_prepend(str(tmp_path / "modules"))
    folder = tmp_path / f"own_{key.partition('.')[0]}"
    shutil.copytree(inputs / "model", folder)
    (folder / "own.py").write_text(CUSTOM_CODE)
    described = json.loads((folder / "config.json").read_text())
    classes = {"AutoConfig": "OwnConfig", "AutoModel": "OwnModel", "AutoModelForCausalLM": "OwnForCausalLM"}
    described |= {"model_type": "own", "auto_map": {auto: f"own.{name}" for auto, name in classes.items()}}
    (folder / "config.json").write_text(json.dumps(described))
    path = f"{key.rpartition('.')[0]}.path={folder}"

    trusted = learner_of(key, settings(path, f"{key}=True"))
    assert type(backbone_of(trusted.module).config).__name__ == "OwnConfig"
    with pytest.raises(LaurelError, match="contains custom code"):
        learner_of(key, settings(path, f"{key}=False"))


@each("enable_gradient_checkpointing")
def test_gradient_checkpointing_computes_each_layer_twice(key, settings):
    lengths = (5, 7)
    columns = {name: noise(sum(lengths)) for name in ("advantages", "values", "returns")}
    forwards = {}
    for enabled in (False, True):
        learner = learner_of(key, settings(f"{key}={enabled}"))
        if key.startswith(CRITIC):  # a head at 0 sends no gradient into the layers
            torch.nn.init.constant_(learner.module.value_head.weight, 0.1)
        calls = []
        for layer in backbone_of(learner.module).layers:
            layer.self_attn.register_forward_hook(lambda *_, calls=calls: calls.append(1))
        learner.update(rank_shares(batch_of(lengths, **columns), 1, 100))
        forwards[enabled] = len(calls)
    assert forwards == {False: 2, True: 4}


@each("override_config")
def test_override_config_changes_the_forward(key, settings):
    def shown(*overrides):
        learner = learner_of(key, settings(*overrides))
        if key.startswith(CRITIC):
            torch.nn.init.constant_(learner.module.value_head.weight, 0.1)
        (values,) = (learner.values if key.startswith(CRITIC) else learner.log_probs)([batch_of((5, 7))])
        return backbone_of(learner.module).config.rms_norm_eps, values

    (_, plain), (eps, changed) = shown(), shown(f"{key}.rms_norm_eps=0.5")
    assert eps == 0.5
    assert not torch.allclose(plain, changed, atol=1e-3)


@effect(f"{ACTOR}.override_config")
def test_override_config_refuses_a_field_that_is_none(key, settings):
    settings()
    with pytest.raises(LaurelError, match=r"model.override_config.no_such: LlamaConfig has no field"):
        PolicyLearner("actor", settings(f"{key}.no_such=1"))
