import pytest
import torch
from transformers import AutoModelForCausalLM
from unit.learner.learner_cases import LENGTHS, PROMPTS, make_batch, make_config

from laurel.learner.forward import response_positions
from laurel.learner.learner import PolicyLearner, ValueLearner


def starts():
    return torch.tensor([0, *LENGTHS]).cumsum(0).tolist()


def test_log_probs_are_those_of_the_plain_model_aligned_to_the_token(model):
    batch = make_batch()
    actor = PolicyLearner("actor", make_config(model))
    plain = AutoModelForCausalLM.from_pretrained(model)
    whole = actor.log_probs([batch])[0]
    halves = actor.log_probs([batch.select([0, 1, 2]), batch.select([3, 4, 5, 6])])
    for row, start in enumerate(starts()[:-1]):
        ids = batch.input_ids[start : start + LENGTHS[row]]
        with torch.no_grad():
            log_p = (plain(ids[None]).logits[0] / 0.7).log_softmax(-1)  # the config's temperature
        for t in range(PROMPTS[row], LENGTHS[row]):
            assert float(whole[start + t]) == pytest.approx(float(log_p[t - 1, ids[t]]), abs=1e-5)
        assert whole[start : start + PROMPTS[row]].tolist() == [0.0] * PROMPTS[row]
    torch.testing.assert_close(torch.cat(halves), whole, atol=1e-5, rtol=0)


def test_logit_grad_squares_are_those_of_the_plain_model(model):
    batch = make_batch()
    found = PolicyLearner("actor", make_config(model)).logit_grad_squares([batch])[0]
    plain = AutoModelForCausalLM.from_pretrained(model)
    for row, start in enumerate(starts()[:-1]):
        ids = batch.input_ids[start : start + LENGTHS[row]]
        with torch.no_grad():
            logits = plain(ids[None]).logits[0] / 0.7  # the config's temperature
        leaf = logits.requires_grad_()
        sampled = torch.arange(PROMPTS[row], LENGTHS[row])
        leaf.log_softmax(-1)[sampled - 1, ids[sampled]].sum().backward()
        torch.testing.assert_close(found[start + sampled], leaf.grad[sampled - 1].square().sum(-1), atol=1e-5, rtol=0)
        assert found[start : start + PROMPTS[row]].tolist() == [0.0] * PROMPTS[row]


def test_values_are_of_the_state_before_the_token(model):
    batch = make_batch()
    critic = ValueLearner(make_config(model))
    head = critic.module.value_head
    with torch.no_grad():
        head.weight.normal_(generator=torch.Generator().manual_seed(0))
        head.bias.fill_(0.25)
    plain = AutoModelForCausalLM.from_pretrained(model).model
    found = critic.values([batch])[0]
    for row, start in enumerate(starts()[:-1]):
        ids = batch.input_ids[start : start + LENGTHS[row]]
        with torch.no_grad():
            expected = head(plain(ids[None]).last_hidden_state[0])[:, 0]
        sampled = slice(PROMPTS[row], LENGTHS[row])
        before = slice(PROMPTS[row] - 1, LENGTHS[row] - 1)
        torch.testing.assert_close(found[start:][sampled], expected[before], atol=1e-5, rtol=0)


def test_only_sampled_tokens_go_through_the_head(model):
    batch = make_batch()
    assert response_positions(batch).numel() == sum(LENGTHS) - sum(PROMPTS)
    mask = batch.response_mask.clone()
    mask[starts()[3]] = True
    with pytest.raises(ValueError, match=r"rows \[3\] begin with a sampled token"):
        response_positions(batch.with_(response_mask=mask))
