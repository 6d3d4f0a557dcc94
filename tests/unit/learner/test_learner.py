import copy

import pytest
import torch
from transformers import AutoModelForCausalLM
from unit.learner.learner_cases import BUDGET, LENGTHS, gradients, make_batch, make_config, make_learners

from laurel.algos.table import build_policy_loss
from laurel.batch.pack import MiniBatch, rank_shares
from laurel.learner.learner import PolicyLearner


def mini(batch, max_tokens=None, max_rows=None):
    return rank_shares(batch, 1, max_tokens, max_rows)[0]


def assert_same(found, expected, atol=1e-5):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, atol=atol, rtol=0, msg=lambda m, name=name: f"{name}: {m}")


@pytest.mark.parametrize("kind", [0, 1], ids=["policy", "value"])
def test_any_packing_gives_the_same_gradient(model, kind):
    """All rows at once, the token budget, one row at a time, and without the row of weight 0."""
    learner = make_learners(model)[kind]
    batch = make_batch()
    whole = gradients(learner, mini(batch))
    assert max(float(value.abs().max()) for value in whole.values()) > 0.05
    assert len(mini(batch, BUDGET).micro_batches) == 3
    assert_same(gradients(learner, mini(batch, BUDGET)), whole)
    assert_same(gradients(learner, mini(batch, max_rows=1)), whole)
    assert_same(gradients(learner, mini(batch.select(range(len(LENGTHS) - 1)))), whole)


def test_packed_gradient_is_that_of_the_plain_model(model):
    """Rows one by one through transformers, log_softmax over whole logits, the same loss on the result."""
    config = make_config(model)
    batch, learner = make_batch(), PolicyLearner("actor", config)
    found = gradients(learner, mini(batch, BUDGET))
    plain = AutoModelForCausalLM.from_pretrained(model, attn_implementation="eager")
    log_probs, entropy = [], []
    for start, end in zip(batch.cu_seqlens[:-1], batch.cu_seqlens[1:], strict=True):
        ids = batch.input_ids[start:end]
        log_p = (plain(ids[None]).logits[0, :-1] / 0.7).log_softmax(-1)
        zero = torch.zeros(1)
        log_probs += [zero, log_p.gather(-1, ids[1:, None])[:, 0]]
        entropy += [zero, -(log_p.exp() * log_p).sum(-1)]
    share = mini(batch)
    loss, _ = build_policy_loss(config)(
        log_probs=torch.cat(log_probs),
        old_log_probs=batch.old_log_probs,
        ref_log_probs=batch.ref_log_probs,
        entropy=torch.cat(entropy),
        advantages=batch.advantages,
        mask=batch.response_mask,
        row_of_token=batch.row_of_token,
        weight=batch.weight,
        token_count=share.token_count,
        row_count=share.row_count,
    )
    loss.backward()
    assert_same(found, {name: parameter.grad for name, parameter in plain.named_parameters()})


def test_rows_of_weight_zero_may_hold_anything(model):
    batch = make_batch()
    learner = PolicyLearner("actor", make_config(model))
    expected = gradients(learner, mini(batch))
    start = int(batch.cu_seqlens[-2])
    spoiled = {}
    for name in ("old_log_probs", "ref_log_probs", "advantages"):
        spoiled[name] = getattr(batch, name).clone()
        spoiled[name][start:] = float("nan")
    assert_same(gradients(learner, mini(batch.with_(**spoiled))), expected, atol=0)


def test_one_update_without_old_log_probs_takes_its_own(model):
    """The ratio is 1: nothing is clipped, and the policy loss is minus the mean advantage."""
    batch = make_batch()
    tokens = {name: column for name, column in batch.tokens.items() if name != "old_log_probs"}
    batch = type(batch)(tokens, batch.rows, batch.cu_seqlens)
    learner = PolicyLearner("actor", make_config(model))
    metrics = learner.update([mini(batch, BUDGET)])
    counted = batch.response_mask & (batch.weight[batch.row_of_token] > 0)
    assert metrics["actor/pg_loss"] == pytest.approx(-float(batch.advantages[counted].mean()), abs=1e-6)
    assert metrics["actor/pg_clipfrac"] == metrics["actor/ppo_kl"] == 0.0
    with pytest.raises(ValueError, match="2 updates on one batch need its column old_log_probs"):
        learner.update([mini(batch)] * 2)


def test_metrics_do_not_depend_on_packing_and_average_over_updates(model):
    batch = make_batch()
    one, many = (PolicyLearner("actor", make_config(model, lr=0.0)) for _ in range(2))
    expected = one.update([mini(batch)])
    found = many.update([mini(batch, max_rows=1), mini(batch, BUDGET)])
    assert found.pop("actor/lr") == expected.pop("actor/lr") == 0.0
    assert found == pytest.approx(expected, rel=1e-4, abs=1e-6)
    assert expected["actor/grad_norm"] > 0


def test_the_same_run_gives_the_same_bits(model):
    found = []
    for _ in range(2):
        actor, critic = make_learners(model)
        metrics = actor.update([mini(make_batch(), BUDGET), mini(make_batch(1), BUDGET)])
        metrics |= critic.update([mini(make_batch(), BUDGET)])
        found.append((metrics, [p.detach() for x in (actor, critic) for p in x.module.parameters()]))
    assert found[0][0] == found[1][0]
    assert all(torch.equal(a, b) for a, b in zip(found[0][1], found[1][1], strict=True))


def test_an_update_moves_log_probs_with_the_advantages(model):
    batch = make_batch()
    learner = PolicyLearner("actor", make_config(model, use_kl_loss=False, entropy_coeff=0.0))
    before = learner.log_probs([batch])[0]
    batch = batch.with_(old_log_probs=before)
    learner.update([mini(batch)] * 3)
    counted = batch.response_mask & (batch.weight[batch.row_of_token] > 0)
    moved = (learner.log_probs([batch])[0] - before)[counted]
    assert float((moved * batch.advantages[counted]).mean()) > 0.01


def test_the_reference_is_frozen(model, tmp_path):
    ref = PolicyLearner("ref", make_config(model))
    assert not any(parameter.requires_grad for parameter in ref.module.parameters())
    with pytest.raises(ValueError, match="the ref is frozen"):
        ref.update([mini(make_batch())])
    with pytest.raises(ValueError, match="nothing to save"):
        ref.save(tmp_path)


def test_a_checkpoint_continues_bit_for_bit(model, tmp_path):
    straight, broken = (PolicyLearner("actor", make_config(model), total_updates=4) for _ in range(2))
    for learner in (straight, broken):
        learner.update([mini(make_batch())])
    broken.save(tmp_path / "actor")
    resumed = PolicyLearner("actor", make_config(model), total_updates=4)
    resumed.load(tmp_path / "actor")
    metrics = [learner.update([mini(make_batch(1)), mini(make_batch(2))]) for learner in (straight, resumed)]
    assert metrics[0] == metrics[1]
    pairs = zip(straight.module.parameters(), resumed.module.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


def test_an_update_needs_data(model):
    learner = PolicyLearner("actor", make_config(model))
    before = copy.deepcopy(learner.module.state_dict())
    with pytest.raises(ValueError, match="without a mini-batch"):
        learner.update([])
    assert isinstance(mini(make_batch()), MiniBatch)
    assert all(torch.equal(value, before[name]) for name, value in learner.module.state_dict().items())
