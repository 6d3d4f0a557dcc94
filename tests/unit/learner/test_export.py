import json

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from unit.learner.learner_cases import BUDGET, make_batch, make_config, make_learners

from laurel.batch.pack import rank_shares
from laurel.config.tree import Model
from laurel.learner.export import export_checkpoint
from laurel.models.load import load_value_model
from laurel.types import LaurelError


@pytest.fixture(scope="module")
def trained(model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("export") / "global_step_1"
    learners = make_learners(model)
    for learner in learners:
        learner.update(rank_shares(make_batch(), 1, BUDGET))
        learner.save(folder / learner.role)
    return folder, *learners


def test_transformers_loads_what_was_trained(trained, model, tmp_path):
    folder, actor, _ = trained
    out = export_checkpoint(folder, tmp_path / "exported")
    exported = AutoModelForCausalLM.from_pretrained(out)
    ids = make_batch().input_ids[None, :20]
    with torch.no_grad():
        found = exported(ids).logits
        before = AutoModelForCausalLM.from_pretrained(model)(ids).logits
    for name, parameter in actor.module.named_parameters():
        assert torch.equal(exported.get_parameter(name), parameter), name
    assert exported.lm_head.weight is exported.model.embed_tokens.weight  # still tied
    assert float((found - before).abs().max()) > 1e-3
    tokenizer = AutoTokenizer.from_pretrained(out)
    assert tokenizer("a1b").input_ids == AutoTokenizer.from_pretrained(model)("a1b").input_ids
    assert tokenizer.chat_template
    wanted, given = (json.loads((x / "config.json").read_text()) for x in (model, out))
    assert given == wanted
    assert (out / "generation_config.json").is_file()


def test_weights_get_the_dtype_that_the_model_was_published_in(trained, tmp_path):
    folder, actor, _ = trained
    config = folder / "actor" / "huggingface" / "config.json"
    text = config.read_text()
    config.write_text(text.replace('"float32"', '"bfloat16"'))
    out = export_checkpoint(folder, tmp_path / "half")
    config.write_text(text)
    exported = AutoModelForCausalLM.from_pretrained(out, dtype="auto")
    assert exported.dtype == torch.bfloat16
    assert torch.equal(exported.model.norm.weight, actor.module.model.norm.weight.bfloat16())


def test_a_critic_comes_back(trained, tmp_path):
    folder, _, critic = trained
    out = export_checkpoint(folder, tmp_path / "critic", role="critic")
    again = load_value_model(Model(path=str(out)), dtype=torch.float32)
    expected = dict(critic.module.named_parameters())
    assert dict(again.named_parameters()).keys() == expected.keys()
    for name, parameter in again.named_parameters():
        assert torch.equal(parameter, expected[name]), name


def test_what_cannot_be_exported_is_said(trained, tmp_path):
    with pytest.raises(LaurelError, match="holds no ref"):
        export_checkpoint(trained[0], tmp_path / "new", role="ref")
    (tmp_path / "file").write_text("")
    with pytest.raises(LaurelError, match="not empty"):
        export_checkpoint(trained[0], tmp_path)


def test_a_checkpoint_of_another_model_is_named(trained, tmp_path):
    from laurel.learner.learner import PolicyLearner
    from laurel.models.tiny import write_tiny_model

    other = write_tiny_model(tmp_path / "other", hidden=16, heads=2)
    learner = PolicyLearner("actor", make_config(other))
    with pytest.raises(LaurelError, match=r"another model: .* has shape \(\d+, 32\) there and \(\d+, 16\) here"):
        learner.load(trained[0] / "actor")
    with pytest.raises(LaurelError, match=r"state.json cannot be read"):
        learner.load(tmp_path)
