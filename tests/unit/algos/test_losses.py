from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch
from unit.algos import loss_cases

from laurel.algos.aggregate import AGGREGATIONS
from laurel.algos.losses import ActorLoss, CriticLoss
from laurel.algos.policy_loss import vanilla
from laurel.algos.value_loss import clipped_value_loss
from laurel.batch.pack import gather_tokens, rank_shares
from laurel.batch.token_batch import TokenBatch

FULL = ActorLoss(
    token_loss=partial(vanilla, clip_low=0.2, clip_high=0.3, clip_c=3.0),
    loss_agg_mode="token-mean",
    loss_scale_factor=7.0,
    entropy_coeff=0.01,
    use_kl_loss=True,
    kl_loss_coef=0.1,
    kl_loss_type="low_var_kl",
)
CRITIC = CriticLoss(partial(clipped_value_loss, clip_range=0.5), loss_agg_mode="token-mean", loss_scale_factor=7.0)


def counts(batch: TokenBatch) -> tuple[float, float]:
    return float((batch.response_mask * batch.weight[batch.row_of_token]).sum()), float(batch.weight.sum())


def run(loss: ActorLoss | CriticLoss, batch: TokenBatch, token_count: float, row_count: float):
    """Loss, metrics and the gradient by the network's output (log_probs or values)."""
    shared = {
        "mask": batch.response_mask,
        "row_of_token": batch.row_of_token,
        "weight": batch.weight,
        "token_count": token_count,
        "row_count": row_count,
    }
    if isinstance(loss, CriticLoss):
        leaf = batch.tokens["log_probs"].clone().requires_grad_()
        value, metrics = loss(values=leaf, old_values=batch.values, returns=batch.returns, **shared)
    else:
        leaf = batch.tokens["log_probs"].clone().requires_grad_()
        value, metrics = loss(
            log_probs=leaf,
            old_log_probs=batch.old_log_probs,
            ref_log_probs=batch.ref_log_probs,
            entropy=batch.tokens["entropy"],
            advantages=batch.advantages,
            **shared,
        )
    value.backward()
    return value.detach(), metrics, leaf.grad


def test_actor_loss_worked_example() -> None:
    """Two tokens of one row, ratio 1 and A = 1, 3: policy loss -2. Entropy 0.5, 1.5: mean 1. KL (k2) 0.5, 0: mean 0.25.

    loss = -2 - 0.1 * 1 + 0.2 * 0.25 = -2.05.
    """
    loss = replace(FULL, entropy_coeff=0.1, kl_loss_coef=0.2, kl_loss_type="mse")
    value, metrics = loss(
        log_probs=torch.tensor([-1.0, -2.0]),
        old_log_probs=torch.tensor([-1.0, -2.0]),
        ref_log_probs=torch.tensor([-2.0, -2.0]),
        entropy=torch.tensor([0.5, 1.5]),
        advantages=torch.tensor([1.0, 3.0]),
        mask=torch.tensor([True, True]),
        row_of_token=torch.tensor([0, 0]),
        weight=torch.ones(1),
        token_count=2.0,
        row_count=1.0,
    )
    assert value.item() == pytest.approx(-2.05)
    assert {name: metric.item() for name, metric in metrics.items()} == pytest.approx(
        {
            "actor/pg_loss": -2.0,
            "actor/pg_clipfrac": 0.0,
            "actor/pg_clipfrac_lower": 0.0,
            "actor/ppo_kl": 0.0,
            "actor/entropy": 1.0,
            "actor/kl_loss": 0.25,
        }
    )
    assert not any(metric.requires_grad for metric in metrics.values())


def test_critic_loss_worked_example() -> None:
    value, metrics = CRITIC(
        values=torch.tensor([9.0, 1.0, 0.25]),
        old_values=torch.zeros(3),
        returns=torch.tensor([0.0, 2.0, 2.0]),
        mask=torch.tensor([False, True, True]),
        row_of_token=torch.tensor([0, 0, 0]),
        weight=torch.ones(1),
        token_count=2.0,
        row_count=1.0,
    )
    assert value.item() == pytest.approx((1.125 + 1.53125) / 2)
    assert {name: metric.item() for name, metric in metrics.items()} == pytest.approx(
        {"critic/vf_loss": 1.328125, "critic/vf_clipfrac": 0.5, "critic/vpred_mean": 0.625}
    )


@pytest.mark.parametrize("mode", list(AGGREGATIONS))
@pytest.mark.parametrize("kind", [FULL, CRITIC], ids=["actor", "critic"])
def test_any_split_into_micro_batches_adds_up_to_the_same(random_batch, kind, mode: str) -> None:
    batch, loss = random_batch(3), replace(kind, loss_agg_mode=mode)
    whole, whole_metrics, whole_gradient = run(loss, batch, *counts(batch))
    filler = batch.select([0]).with_weight(0.0)
    for shares in ([[0, 1, 2], [3, 4, 5, 6], [7, 8, 9, 10, 11]], [[11, 4], [0, 9, 3, 2], [1, 5, 6, 7, 8, 10]]):
        micros = [batch.select(rows) for rows in shares] + [filler]
        parts = [run(loss, micro, *counts(batch)) for micro in micros]
        assert sum(part[0].item() for part in parts) == pytest.approx(whole.item(), rel=1e-6, abs=1e-6)
        for name, metric in whole_metrics.items():
            assert sum(part[1][name].item() for part in parts) == pytest.approx(metric.item(), rel=1e-6, abs=1e-6)
        order = torch.tensor([row for rows in shares for row in rows])
        expected = batch.with_(gradient=whole_gradient).select(order).tokens["gradient"]
        torch.testing.assert_close(torch.cat([part[2] for part in parts[:-1]]), expected, atol=1e-6, rtol=1e-5)
        assert parts[-1][0].item() == 0.0
        assert bool((parts[-1][2] == 0).all())


def gradient_over_ranks(loss: ActorLoss, batch: TokenBatch, *, ranks: int, max_tokens: int | None):
    """Loss, metrics and gradient (T,) of one update whose micro-batches on all ranks were added up."""
    shards, values, sums = [], 0.0, {}
    for share in rank_shares(batch, ranks, max_tokens):
        for micro in share.micro_batches:
            value, metrics, gradient = loss_cases.run(loss, micro, share.token_count, share.row_count)
            shards.append((micro, gradient))
            values += value.item()
            for name, metric in metrics.items():
                sums[name] = sums.get(name, 0.0) + metric.item()
    return values, sums, gather_tokens(batch, "gradient", shards)


@pytest.mark.parametrize("mode", list(AGGREGATIONS))
@pytest.mark.parametrize("name", list(loss_cases.CASES))
def test_micro_batches_order_ranks_and_padding_change_no_gradient(random_batch, name: str, mode: str) -> None:
    """Every policy loss, with chosen tokens, rollout weights, entropy bonus and KL loss, in float32. Shares of three
    ranks with a small budget have rows of weight 0 as padding."""
    loss = loss_cases.actor_loss(
        name, mode, entropy_coeff=0.01, use_kl_loss=True, kl_loss_coef=0.1, kl_loss_type="low_var_kl"
    )
    batch = loss_cases.with_choice(random_batch(8))
    value, metrics, expected = loss_cases.run(loss, batch, *counts(batch))
    padded = 0
    for ranks, max_tokens, order in (
        (1, 40, range(12)),
        (2, 60, range(11, -1, -1)),
        (3, 35, [5, 0, *range(6, 12), *range(1, 5)]),
    ):
        mixed = batch.select(list(order))
        found, sums, gradient = gradient_over_ranks(loss, mixed, ranks=ranks, max_tokens=max_tokens)
        # Sums of hundreds of float32 numbers of both signs; the gradients are not sums over tokens
        assert found == pytest.approx(value.item(), rel=1e-5, abs=1e-5)
        assert sums == pytest.approx({name: metric.item() for name, metric in metrics.items()}, rel=1e-5, abs=1e-5)
        wanted = batch.with_(gradient=expected).select(list(order)).tokens["gradient"]
        torch.testing.assert_close(gradient, wanted, rtol=1e-6, atol=1e-6)
        assert bool((gradient[~mixed.response_mask] == 0).all())
        padded += sum(
            bool((m.weight == 0).all()) for s in rank_shares(mixed, ranks, max_tokens) for m in s.micro_batches
        )
    assert padded > 0


@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
@pytest.mark.parametrize("name", list(loss_cases.CASES))
def test_what_was_not_sampled_cannot_poison_any_policy_loss(random_batch, name: str, poison: float) -> None:
    batch = loss_cases.with_choice(random_batch(4)).with_(weight=torch.tensor([1.0] * 10 + [0.0] * 2))
    idle = ~(batch.response_mask & (batch.weight > 0)[batch.row_of_token])
    columns = ("log_probs", "old_log_probs", "ref_log_probs", "entropy", "advantages", "rollout_is_weights")
    poisoned = batch.with_(**{column: torch.where(idle, poison, batch.tokens[column]) for column in columns})
    loss = loss_cases.actor_loss(name, "seq-mean-token-mean")
    clean, dirty = (loss_cases.run(loss, given, *counts(batch)) for given in (batch, poisoned))
    assert dirty[0].item() == clean[0].item()
    assert torch.equal(dirty[2], clean[2])
    assert bool((dirty[2][idle] == 0).all())
    assert {key: metric.item() for key, metric in dirty[1].items()} == {
        key: metric.item() for key, metric in clean[1].items()
    }


def test_rollout_weights_weigh_the_policy_loss_alone() -> None:
    """Two tokens of ratio 1, A = 1, 3 and weights 0.5, 2: (0.5 + 6) / 2 = 3.25; entropy and KL are as without."""
    given = {
        "log_probs": torch.tensor([-1.0, -2.0]),
        "old_log_probs": torch.tensor([-1.0, -2.0]),
        "ref_log_probs": torch.tensor([-2.0, -2.0]),
        "entropy": torch.tensor([0.5, 1.5]),
        "advantages": torch.tensor([1.0, 3.0]),
        "mask": torch.tensor([True, True]),
        "row_of_token": torch.tensor([0, 0]),
        "weight": torch.ones(1),
        "token_count": 2.0,
        "row_count": 1.0,
    }
    loss = replace(FULL, entropy_coeff=0.1, kl_loss_coef=0.2, kl_loss_type="mse")
    value, metrics = loss(**given, rollout_is_weights=torch.tensor([0.5, 2.0]))
    assert metrics["actor/pg_loss"].item() == pytest.approx(-3.25)
    assert value.item() == pytest.approx(-3.25 - 0.1 * 1 + 0.2 * 0.25)


@pytest.mark.parametrize("poison", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("mode", list(AGGREGATIONS))
@pytest.mark.parametrize("kind", [FULL, CRITIC], ids=["actor", "critic"])
def test_what_does_not_count_cannot_poison(random_batch, kind, mode: str, poison: float) -> None:
    """Prompt and environment tokens and rows of weight 0 may hold anything: loss and gradient stay, theirs is 0."""
    batch = random_batch(4).with_(weight=torch.tensor([1.0] * 10 + [0.0] * 2))
    loss = replace(kind, loss_agg_mode=mode)
    idle = ~(batch.response_mask & (batch.weight > 0)[batch.row_of_token])
    assert bool(idle.any())
    poisoned = batch.with_(
        **{
            name: torch.where(idle, poison, batch.tokens[name])
            for name in ("log_probs", "old_log_probs", "ref_log_probs", "entropy", "advantages", "values", "returns")
        }
    )
    clean, dirty = run(loss, batch, *counts(batch)), run(loss, poisoned, *counts(batch))
    assert dirty[0].item() == clean[0].item()
    assert torch.equal(dirty[2], clean[2])
    assert bool((dirty[2][idle] == 0).all())
    assert {name: value.item() for name, value in dirty[1].items()} == {
        name: value.item() for name, value in clean[1].items()
    }


@pytest.mark.parametrize("mode", list(AGGREGATIONS))
def test_whole_loss_gradient_matches_finite_differences(random_batch, mode: str) -> None:
    batch, loss = random_batch(6, row_count=4), replace(FULL, loss_agg_mode=mode)
    token_count, row_count = counts(batch)

    def value(log_probs: torch.Tensor, entropy: torch.Tensor) -> torch.Tensor:
        return loss(
            log_probs=log_probs,
            old_log_probs=batch.old_log_probs.double(),
            ref_log_probs=batch.ref_log_probs.double(),
            entropy=entropy,
            advantages=batch.advantages.double(),
            mask=batch.response_mask,
            row_of_token=batch.row_of_token,
            weight=batch.weight.double(),
            token_count=token_count,
            row_count=row_count,
        )[0]

    leaves = (batch.tokens["log_probs"].double().requires_grad_(), batch.tokens["entropy"].double().requires_grad_())
    assert torch.autograd.gradcheck(value, leaves)


@pytest.mark.parametrize(
    ("missing", "message"), [("entropy", "entropy_coeff=0.01 needs"), ("ref_log_probs", "use_kl_loss=True needs")]
)
def test_a_missing_input_is_named(random_batch, missing: str, message: str) -> None:
    batch = random_batch(0)
    given = {
        "log_probs": batch.tokens["log_probs"],
        "old_log_probs": batch.old_log_probs,
        "ref_log_probs": batch.ref_log_probs,
        "entropy": batch.tokens["entropy"],
        "advantages": batch.advantages,
        "mask": batch.response_mask,
        "row_of_token": batch.row_of_token,
        "weight": batch.weight,
        "token_count": 1.0,
        "row_count": 1.0,
    }
    with pytest.raises(ValueError, match=message):
        FULL(**(given | {missing: None}))


def test_first_update_on_unchanged_weights_has_ratio_one(random_batch) -> None:
    batch = random_batch(1)
    batch = batch.with_(log_probs=batch.old_log_probs, ref_log_probs=batch.old_log_probs)
    _, metrics, _ = run(FULL, batch, *counts(batch))
    for name in ("actor/pg_clipfrac", "actor/pg_clipfrac_lower", "actor/ppo_kl", "actor/kl_loss"):
        assert metrics[name].item() == 0.0
