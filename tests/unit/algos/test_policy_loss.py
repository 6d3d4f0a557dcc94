"""Each policy loss by numbers worked by hand (those of its docstring), what it watches, and which way it pushes."""

from __future__ import annotations

import math

import pytest
import torch
from unit.algos.loss_cases import CASES, actor_loss, counts, run

from laurel.algos import policy_loss
from laurel.algos.aggregate import AGGREGATIONS

LOG2 = math.log(2)


def tensor(values: list[float]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def of_ratio(loss, ratio: list[float], advantages: list[float], rows: list[int] | None = None, **settings):
    """Losses of tokens with these ratios, watched numbers, and the gradient of the sum of losses."""
    return of(loss, tensor(ratio).log().tolist(), [0.0] * len(ratio), advantages, rows, **settings)


def of(loss, log_probs, old, advantages, rows=None, chosen=None, **settings):
    leaf = tensor(log_probs).requires_grad_()
    rows = rows or [0] * len(log_probs)
    losses, watched = loss(
        log_probs=leaf,
        old_log_probs=tensor(old),
        advantages=tensor(advantages),
        mask=torch.ones(len(rows), dtype=torch.bool),
        row_of_token=torch.tensor(rows),
        weight=torch.ones(max(rows) + 1, dtype=torch.float64),
        chosen=torch.tensor(chosen or [False] * len(rows)),
        **settings,
    )
    (gradient,) = torch.autograd.grad(losses.sum(), leaf)
    return losses.detach(), watched, gradient


PPO = {"clip_low": 0.2, "clip_high": 0.2}


def test_vanilla() -> None:
    losses, watched, _ = of_ratio(
        policy_loss.vanilla, [1.5, 0.5, 0.5, 5.0, 1.0], [1.0, 1.0, -1.0, -1.0, 2.0], **PPO, clip_c=3.0
    )
    assert losses.tolist() == pytest.approx([-1.2, -0.5, 0.8, 3.0, -2.0])
    assert watched["pg_clipfrac"].tolist() == [1, 0, 1, 0, 0]
    assert watched["pg_clipfrac_lower"].tolist() == [0, 0, 0, 1, 0]
    assert watched["ppo_kl"].tolist() == pytest.approx([-math.log(1.5), LOG2, LOG2, -math.log(5), 0])


def test_vanilla_ranges_below_and_above_differ() -> None:
    losses, _, _ = of_ratio(policy_loss.vanilla, [1.5, 0.5], [1.0, -1.0], clip_low=0.3, clip_high=0.4, clip_c=3.0)
    assert losses.tolist() == pytest.approx([-1.4, 0.7])


def test_vanilla_gradient_in_every_branch() -> None:
    """-A * ratio where no clip holds: free, clipped above, free below; clipped below, free, dual clip."""
    ratios, advantages = [1.1, 1.5, 0.5, 0.5, 1.1, 5.0], [1.0, 1.0, 1.0, -1.0, -1.0, -1.0]
    _, _, gradient = of_ratio(policy_loss.vanilla, ratios, advantages, **PPO, clip_c=3.0)
    assert gradient.tolist() == pytest.approx([-1.1, 0.0, -0.5, 0.0, 1.1, 0.0])


def test_gspo() -> None:
    """Rows with ratios (4, 1) and A = 1, then A = -1: s = 2. A row (1.21, 1) has s = 1.1 and is free."""
    losses, watched, gradient = of_ratio(
        policy_loss.gspo, [4, 1, 4, 1, 1.21, 1], [1, 1, -1, -1, 1, 3], [0, 0, 1, 1, 2, 2], **PPO
    )
    assert losses.tolist() == pytest.approx([-1.2, -1.2, 2, 2, -1.1, -3.3])
    assert watched["pg_clipfrac"].tolist() == [1, 1, 0, 0, 0, 0]
    assert watched["ppo_kl"].tolist() == pytest.approx([-2 * LOG2, 0, -2 * LOG2, 0, -math.log(1.21), 0])
    assert gradient.tolist() == pytest.approx([0, 0, 2, 2, -1.1, -3.3])


def test_gspo_is_the_sequence_objective_where_a_row_has_one_advantage() -> None:
    """Equation 5 itself, with its true gradient through the mean."""
    log_probs = tensor([-1.0, -2.0, -0.5]).requires_grad_()
    old, advantage = tensor([-1.1, -2.2, -0.4]), 1.5
    s = (log_probs - old).mean().exp()
    objective = -torch.minimum(s * advantage, s.clamp(0.8, 1.2) * advantage)
    (expected,) = torch.autograd.grad(objective, log_probs)
    losses, _, gradient = of(policy_loss.gspo, log_probs.tolist(), old.tolist(), [advantage] * 3, **PPO)
    assert losses.mean().item() == pytest.approx(objective.item())
    torch.testing.assert_close(gradient / 3, expected)


def test_gpg() -> None:
    losses, watched, gradient = of(policy_loss.gpg, [-1.0, -1.0], [-1.5, -1.0], [2.0, -3.0])
    assert losses.tolist() == [2.0, -3.0]
    assert gradient.tolist() == [-2.0, 3.0]
    assert watched["ppo_kl"].tolist() == [-0.5, 0.0]


def test_clip_cov() -> None:
    losses, watched, gradient = of_ratio(
        policy_loss.clip_cov, [1.1, 1.1, 1.5], [1, 1, 1], chosen=[False, True, False], **PPO
    )
    assert losses.tolist() == pytest.approx([-1.1, 0, -1.2])
    assert watched["pg_covfrac"].tolist() == [0, 1, 0]
    assert watched["pg_clipfrac"].tolist() == [0, 0, 1]
    assert gradient.tolist() == pytest.approx([-1.1, 0, 0])


def test_kl_cov() -> None:
    losses, watched, gradient = of_ratio(
        policy_loss.kl_cov, [2, 2, 0.5], [1, 1, 1], chosen=[False, True, True], kl_coef=0.1
    )
    assert losses.tolist() == pytest.approx([-2, -2 + 0.1 * LOG2, -0.5 + 0.1 * LOG2])
    assert watched["pg_covfrac"].tolist() == [0, 1, 1]
    # The penalty pulls back towards the old policy from both sides
    assert gradient.tolist() == pytest.approx([-2, -1.9, -0.6])


def test_geo_mean() -> None:
    """Log ratios (1, 0.1) with A = 2, then A = -2; ranges 0.5."""
    losses, watched, gradient = of(
        policy_loss.geo_mean,
        [1, 0.1, 1, 0.1],
        [0.0] * 4,
        [2, 2, -2, -2],
        [0, 0, 1, 1],
        clip_low=0.5,
        clip_high=0.5,
    )
    good, bad = 2 * math.exp(0.3), 2 * math.exp(0.55)
    assert losses.tolist() == pytest.approx([-good, -good, bad, bad])
    assert (good, bad) == pytest.approx((2.700, 3.467), abs=1e-3)
    assert watched["pg_clipfrac"].tolist() == [1, 0, 0, 0]
    # Each row's two losses, each half of it by its token; nothing where the clip was taken
    assert gradient.tolist() == pytest.approx([0, -good, bad, bad])


def test_cispo() -> None:
    losses, watched, gradient = of(
        policy_loss.cispo, [-1, -1, -1], [-1 - math.log(1.5), -1 + LOG2, -1], [2, -1, 1], **PPO
    )
    assert losses.tolist() == pytest.approx([2.4, -0.8, 1])
    assert gradient.tolist() == pytest.approx([-2.4, 0.8, -1])
    assert watched["pg_clipfrac"].tolist() == [1, 1, 0]


def test_sapo() -> None:
    sigmoid1 = 1 / (1 + math.exp(-1))
    losses, watched, gradient = of_ratio(policy_loss.sapo, [1, 2, 1], [1, 1, -1], tau_pos=1.0, tau_neg=2.0)
    assert losses.tolist() == pytest.approx([-2, -4 * sigmoid1, 1])
    assert (4 * sigmoid1) == pytest.approx(2.924, abs=1e-3)
    # 4 p (1 - p) ratio A, 1 at ratio 1
    assert gradient.tolist() == pytest.approx([-1, -4 * sigmoid1 * (1 - sigmoid1) * 2, 1])
    assert set(watched) == {"ppo_kl"}


def test_dro() -> None:
    losses, _, gradient = of(policy_loss.dro, [-1, -1], [-2, -1], [1, 1], beta=0.1)
    assert losses.tolist() == pytest.approx([1.05, 1])
    assert gradient.tolist() == pytest.approx([-0.9, -1])
    # It stops where the log ratio is A / beta
    _, _, rest = of(policy_loss.dro, [-1], [-3], [0.2], beta=0.1)
    assert rest.tolist() == pytest.approx([0])


def logs(*probabilities: float) -> list[float]:
    return [math.log(p) for p in probabilities]


def test_dppo_tv() -> None:
    """A rare token may become ten times likelier, a likely one not gain 0.3; back towards the old policy is free."""
    losses, watched, gradient = of(
        policy_loss.dppo_tv,
        logs(0.1, 0.8, 0.8, 0.2, 0.2),
        logs(0.01, 0.5, 0.5, 0.5, 0.5),
        [1, 1, -1, -1, 1],
        **PPO,
    )
    assert losses.tolist() == pytest.approx([-10, 0, 1.6, 0, -0.4])
    assert watched["pg_clipfrac"].tolist() == [0, 1, 0, 1, 0]
    assert gradient.tolist() == pytest.approx([-10, 0, 1.6, 0, -0.4])


def test_dppo_kl() -> None:
    losses, watched, _ = of(
        policy_loss.dppo_kl, logs(0.8, 0.6, 0.2), logs(0.5, 0.5, 0.5), [1, 1, -1], clip_low=0.1, clip_high=0.1
    )
    assert losses.tolist() == pytest.approx([0, -1.2, 0])
    assert watched["pg_clipfrac"].tolist() == [1, 0, 1]
    # Limits on both sides of the divergences that the docstring names
    for probability, divergence in ((0.8, 0.2231), (0.6, 0.0204)):
        for limit, stopped in ((divergence - 1e-4, 1), (divergence + 1e-4, 0)):
            _, watched, _ = of(policy_loss.dppo_kl, logs(probability), logs(0.5), [1], clip_low=9, clip_high=limit)
            assert watched["pg_clipfrac"].tolist() == [stopped]


def test_dppo_kl_of_certain_tokens_is_a_number() -> None:
    losses, watched, gradient = of(policy_loss.dppo_kl, [0.0, -1e-12], [-1e-12, 0.0], [1.0, -1.0], **PPO)
    assert losses.tolist() == pytest.approx([-1, 1])
    assert watched["pg_clipfrac"].tolist() == [0, 0]
    assert bool(gradient.isfinite().all())


@pytest.mark.parametrize("name", [name for name in CASES if name != "dro"])
def test_log_ratios_are_kept_finite(name: str) -> None:
    losses, _, gradient = of(CASES[name][0], [-1e-9, -900.0], [-900.0, -1e-9], [-1.0, 1.0], [0, 1])
    assert bool(losses.isfinite().all())
    assert bool(gradient.isfinite().all())


def test_vanilla_bounds_the_ratio_at_exp_20() -> None:
    losses, _, _ = of(policy_loss.vanilla, [0.0, -900.0], [-900.0, 0.0], [-1.0, 1.0], **PPO, clip_c=1e12)
    assert losses.tolist() == pytest.approx([math.exp(20), -math.exp(-20)])


# --- what holds for every loss ------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", list(AGGREGATIONS))
@pytest.mark.parametrize("name", list(CASES))
def test_raising_a_good_token_lowers_the_loss(random_batch, name: str, mode: str) -> None:
    """Near the old policy, where no clip holds: A > 0 has a gradient below 0, A < 0 above, tokens that were not sampled
    none; and a small step along the gradient's other side lowers the loss."""
    batch = random_batch(5)
    old = batch.old_log_probs.double()
    noise = torch.randn(batch.token_count, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    signs = torch.where(batch.row_of_token % 2 == 0, 1.0, -1.0)
    batch = batch.with_(advantages=signs)
    log_probs = (old + 1e-3 * noise).clamp(max=-1e-3)
    loss = actor_loss(name, mode)
    value, _, gradient = run(loss, batch, *counts(batch), log_probs)
    sampled = batch.response_mask
    assert bool((gradient[sampled & (signs > 0)] < 0).all())
    assert bool((gradient[sampled & (signs < 0)] > 0).all())
    assert bool((gradient[~sampled] == 0).all())
    lower, _, _ = run(loss, batch, *counts(batch), log_probs - 1e-6 * gradient)
    assert lower < value


@pytest.mark.parametrize("mode", list(AGGREGATIONS))
@pytest.mark.parametrize("name", list(CASES))
def test_at_the_old_policy_every_loss_is_the_policy_gradient(random_batch, name: str, mode: str) -> None:
    """Ratio 1, nothing clipped, KL 0, and -A times each token's weight as the gradient (rows have one advantage)."""
    batch = random_batch(1)
    advantages = torch.randn(batch.row_count, generator=torch.Generator().manual_seed(3))[batch.row_of_token]
    batch = batch.with_(log_probs=batch.old_log_probs, advantages=advantages)
    _, metrics, gradient = run(actor_loss(name, mode), batch, *counts(batch))
    _, _, plain = run(actor_loss("gpg", mode), batch, *counts(batch))
    torch.testing.assert_close(gradient, plain, rtol=1e-5, atol=1e-6)
    assert bool((gradient[~batch.response_mask] == 0).all())
    for watched in metrics.keys() & {"actor/pg_clipfrac", "actor/pg_clipfrac_lower", "actor/ppo_kl"}:
        assert metrics[watched].item() == 0.0
    assert "actor/ppo_kl" in metrics
