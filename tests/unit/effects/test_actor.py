"""Effects of actor_rollout_ref.actor.*: on the mini-batches that travel to the ranks, and on the policy loss."""

import math

import pytest
import torch
from unit.effects.cases import ACTOR, GRPO, batch_of, run_of
from unit.effects.registry import effect

from laurel.algos import table
from laurel.algos.table import build_policy_loss
from laurel.tracking.timer import Timer
from laurel.trainer.build import prepare
from laurel.workers.clients import ActorClient

LENGTHS = (4, 6, 3, 5, 7, 3, 4, 4)
GROUPS = (0, 0, 1, 1, 2, 2, 3, 3)
MINI = f"{ACTOR}.ppo_mini_batch_size"


def updates(config, ranks, step=1):
    """The mini-batches that rank 0 gets for a batch of four groups of two rows, lengths ``LENGTHS``."""
    ActorClient(ranks, config, timer=Timer(), step=lambda: step).update(batch_of(LENGTHS, groups=GROUPS))
    method, (mini_batches,) = ranks.sent[-1]
    assert method == "update_actor"
    return mini_batches


def groups_of(mini_batches):
    return [[int(g) for micro in mini.micro_batches for g in micro.group.unique()] for mini in mini_batches]


def micro_sizes(mini_batches, what):
    """``row_count`` or ``token_count`` of each micro-batch of the first update."""
    return [getattr(micro, what) for micro in mini_batches[0].micro_batches]


@effect(MINI)
def test_mini_batch_size_is_groups_per_update(key, settings, ranks):
    for size, counts in ((1, [2, 2, 2, 2]), (2, [4, 4]), (3, [6, 2]), (4, [8])):
        config = settings(f"{key}={size}")
        assert [mini.row_count for mini in updates(config, ranks)] == counts
        assert prepare(config).updates.actor == 2 * len(counts)  # of 2 steps: 10 rows, batches of 4


@effect(MINI)
def test_one_update_per_batch_makes_no_pass_for_old_log_probs(key, settings, ranks):
    for size, passes in ((4, 0), (2, 1)):
        run, _ = run_of(settings(*GRPO, f"{key}={size}"), ranks)
        ranks.sent.clear()
        run.roles.actor.log_probs(batch_of(LENGTHS))
        assert ranks.methods().count("log_probs") == passes


@effect(f"{ACTOR}.ppo_epochs")
def test_ppo_epochs_repeats_the_updates(key, settings, ranks):
    for epochs, updates_made in ((1, 2), (3, 6)):
        config = settings(f"{MINI}=2", f"{key}={epochs}")
        assert len(updates(config, ranks)) == updates_made
        assert prepare(config).updates.actor == 2 * updates_made  # of 2 steps: 10 rows, batches of 4


@effect(f"{ACTOR}.shuffle")
def test_shuffle_mixes_groups_between_updates(key, settings, ranks):
    ordered, mixed = (settings(f"{MINI}=1", f"{key}={value}") for value in (False, True))
    assert groups_of(updates(ordered, ranks)) == [[0], [1], [2], [3]]
    orders = [groups_of(updates(mixed, ranks, step)) for step in range(1, 6)]
    assert all(sorted(order) == [[0], [1], [2], [3]] for order in orders)
    assert len({str(order) for order in orders}) > 2
    assert groups_of(updates(mixed, ranks, 3)) == orders[2]


@effect(f"{ACTOR}.ppo_micro_batch_size_per_gpu")
def test_micro_batch_size_is_rows_per_forward(key, settings, ranks):
    assert micro_sizes(updates(settings(), ranks), "row_count") == [8]
    for size in (1, 2):
        assert micro_sizes(updates(settings(f"{key}={size}"), ranks), "row_count") == [size] * (8 // size)


@effect(f"{ACTOR}.use_dynamic_bsz")
def test_dynamic_bsz_packs_by_tokens_though_a_size_is_given(key, settings, ranks):
    size = f"{ACTOR}.ppo_micro_batch_size_per_gpu=2"
    assert micro_sizes(updates(settings(size, f"{key}=False"), ranks), "row_count") == [2, 2, 2, 2]
    assert micro_sizes(updates(settings(size, f"{key}=True"), ranks), "row_count") == [8]


@effect(f"{ACTOR}.ppo_max_token_len_per_gpu")
def test_token_budget_bounds_a_forward(key, settings, ranks):
    assert micro_sizes(updates(settings(f"{key}=36"), ranks), "token_count") == [36]
    cut = micro_sizes(updates(settings(f"{key}=12"), ranks), "token_count")
    assert sum(cut) == 36
    assert max(cut) <= 12


# --- the loss -------------------------------------------------------------------------------------------------------


def token_loss(config, *, ratio, advantage):
    """Policy loss of one token."""
    return loss_of(config, log_probs=[math.log(ratio)], old=[0.0], advantages=[advantage], rows=[0])[0]


def loss_of(config, *, log_probs, advantages, rows, old=None, ref=None, entropy=None):
    """Loss and metrics of sampled tokens that belong to ``rows``."""
    count = max(rows) + 1

    def tensor(values):
        return None if values is None else torch.tensor(values, dtype=torch.float32)

    loss, metrics = build_policy_loss(config)(
        log_probs=tensor(log_probs),
        old_log_probs=tensor(old if old is not None else log_probs),
        ref_log_probs=tensor(ref),
        entropy=tensor(entropy),
        advantages=tensor(advantages),
        mask=torch.ones(len(rows), dtype=torch.bool),
        row_of_token=torch.tensor(rows),
        weight=torch.ones(count),
        token_count=float(len(rows)),
        row_count=float(count),
    )
    return float(loss), metrics


@effect(f"{ACTOR}.clip_ratio", f"{ACTOR}.clip_ratio_high")
def test_the_upper_clip_bounds_what_a_good_token_gains(key, settings):
    for given, loss in (((), -1.2), ((f"{key}=0.3",), -1.3), ((f"{key}=0.1",), -1.1)):
        assert token_loss(settings(*given), ratio=1.5, advantage=1.0) == pytest.approx(loss)


@effect(f"{ACTOR}.clip_ratio", f"{ACTOR}.clip_ratio_low")
def test_the_lower_clip_bounds_what_a_bad_token_gains(key, settings):
    for given, loss in (((), 0.8), ((f"{key}=0.3",), 0.7), ((f"{key}=0.1",), 0.9)):
        assert token_loss(settings(*given), ratio=0.5, advantage=-1.0) == pytest.approx(loss)


@effect(f"{ACTOR}.clip_ratio_low", f"{ACTOR}.clip_ratio_high")
def test_each_side_is_clipped_by_itself(key, settings):
    config = settings(f"{key}=0.1")
    settings()
    other = {"low": (1.5, 1.0, -1.2), "high": (0.5, -1.0, 0.8)}[key.rpartition("_")[2]]
    assert token_loss(config, ratio=other[0], advantage=other[1]) == pytest.approx(other[2])


@effect(f"{ACTOR}.clip_ratio_c")
def test_dual_clip_bounds_what_a_bad_token_costs(key, settings):
    for factor in (2.0, 3.0):
        assert token_loss(settings(f"{key}={factor}"), ratio=5.0, advantage=-1.0) == pytest.approx(factor)


@effect(f"{ACTOR}.loss_agg_mode")
def test_loss_agg_mode_weighs_tokens_and_rows(key, settings):
    expected = {  # token losses (1, 2) and (6)
        "token-mean": 3.0,
        "token-sum": 9.0,
        "seq-mean-token-sum": 4.5,
        "seq-mean-token-mean": 3.75,
        "seq-mean-token-sum-norm": 4.5 / 8,  # data.max_response_length
    }
    for mode, loss in expected.items():
        found, _ = loss_of(settings(f"{key}={mode}"), log_probs=[0.0] * 3, advantages=[-1, -2, -6], rows=[0, 0, 1])
        assert found == pytest.approx(loss), mode


@effect(f"{ACTOR}.loss_scale_factor")
def test_loss_scale_factor_divides_the_sum_of_a_row(key, settings):
    mode = f"{ACTOR}.loss_agg_mode=seq-mean-token-sum-norm"
    for scale, loss in ((3, 1.5), (9, 0.5)):
        config = settings(mode, f"{key}={scale}")
        assert loss_of(config, log_probs=[0.0] * 3, advantages=[-1, -2, -6], rows=[0, 0, 1])[0] == pytest.approx(loss)


@effect(f"{ACTOR}.entropy_coeff")
def test_entropy_coeff_rewards_entropy(key, settings):
    for weight, loss in ((0.0, 0.0), (0.1, -0.2), (-0.1, 0.2)):
        found, metrics = loss_of(
            settings(f"{key}={weight}"), log_probs=[0, 0], advantages=[0, 0], rows=[0, 1], entropy=[1.0, 3.0]
        )
        assert found == pytest.approx(loss)
        assert float(metrics["actor/entropy"]) == pytest.approx(2.0)


@effect(f"{ACTOR}.use_kl_loss")
def test_use_kl_loss_adds_the_divergence_and_needs_a_reference(key, settings, ranks):
    for on, loss, role in ((False, 0.0, "NoRef"), (True, 0.001 * 0.1931472, "RefClient")):
        config = settings(*GRPO, f"{key}={on}")
        found, _ = loss_of(config, log_probs=[math.log(0.5)], advantages=[0.0], rows=[0], ref=[math.log(0.25)])
        # low_var_kl of probabilities 0.5 and 0.25: 0.5 - 1 + log 2
        assert found == pytest.approx(loss, rel=1e-4)
        assert config.needs_reference is on
        assert type(run_of(config, ranks)[0].roles.ref).__name__ == role


@effect(f"{ACTOR}.kl_loss_coef")
def test_kl_loss_coef_weighs_the_divergence(key, settings):
    for weight in (0.1, 2.0):
        config = settings(f"{ACTOR}.use_kl_loss=True", f"{ACTOR}.kl_loss_type=kl", f"{key}={weight}")
        found, _ = loss_of(config, log_probs=[-1.0], advantages=[0.0], rows=[0], ref=[-1.5])
        assert found == pytest.approx(weight * 0.5)


@effect(f"{ACTOR}.kl_loss_type")
def test_kl_loss_type_chooses_the_estimator(key, settings):
    expected = {"kl": -math.log(2), "abs": math.log(2), "mse": math.log(2) ** 2 / 2, "low_var_kl": 1 - math.log(2)}
    for name, loss in expected.items():
        config = settings(f"{ACTOR}.use_kl_loss=True", f"{ACTOR}.kl_loss_coef=1", f"{key}={name}")
        found, _ = loss_of(config, log_probs=[math.log(0.25)], advantages=[0.0], rows=[0], ref=[math.log(0.5)])
        assert found == pytest.approx(loss), name


@effect(f"{ACTOR}.kl_loss_type")
def test_a_plus_gives_kl_loss_type_the_gradient_of_k2(key, settings):
    reference = torch.tensor([math.log(0.5)])
    for name, slope in (("kl", 1.0), ("k1+", -math.log(2)), ("abs+", -math.log(2)), ("k3+", -math.log(2))):
        config = settings(f"{ACTOR}.use_kl_loss=True", f"{key}={name}")
        log_probs = torch.tensor([math.log(0.25)], requires_grad=True)
        estimate = table.KL_ESTIMATORS[table.build_policy_loss(config).kl_loss_type]
        estimate(log_probs, reference).sum().backward()
        assert log_probs.grad.item() == pytest.approx(slope), name


LOSS = f"{ACTOR}.policy_loss"


@effect(f"{LOSS}.loss_mode")
def test_loss_mode_chooses_the_policy_loss(key, settings):
    """One token of probability 0.25 that was 0.5 or 0.2, advantage 1; two rows of which one moved."""
    expected = {
        "vanilla": (-0.5, -1.2),
        "gspo": (-0.5, -1.2),
        "gpg": (2 * math.log(2), 2 * math.log(2)),
        "clip_cov": (-0.5, -1.2),
        "kl_cov": (-0.5, -1.25),
        "geo_mean": (-0.5, -math.exp(0.2)),
        "cispo": (0.8 * 2 * math.log(2), 1.2 * 2 * math.log(2)),
        "sapo": (-4 / (1 + math.exp(0.5)), -4 / (1 + math.exp(-0.25))),
        "dro": (
            2 * math.log(2) + 0.05 * math.log(2) ** 2,
            2 * math.log(2) + 0.05 * math.log(1.25) ** 2,
        ),
        "dppo_tv": (-0.5, -1.25),
        "dppo_kl": (-0.5, -1.25),
    }
    assert list(expected) == list(table.POLICY_LOSSES)
    for mode, losses in expected.items():
        config = settings(f"{key}={mode}")
        for old, loss in zip((0.5, 0.2), losses, strict=True):
            found, _ = loss_of(config, log_probs=[math.log(0.25)], old=[math.log(old)], advantages=[1.0], rows=[0])
            assert found == pytest.approx(loss), (mode, old)
    assert "must be one of vanilla, gspo" in settings.refused(f"{key}=no_such_loss").cure


@effect(f"{ACTOR}.loss_agg_mode")
def test_loss_agg_mode_is_what_the_paper_takes_unless_given(key, settings):
    for mode, agg in (("vanilla", "token-mean"), ("gspo", "seq-mean-token-mean"), ("sapo", "seq-mean-token-mean")):
        config = settings(f"{LOSS}.loss_mode={mode}")
        assert config.actor_rollout_ref.actor.loss_agg_mode == agg
        assert build_policy_loss(config).loss_agg_mode == agg
        assert build_policy_loss(settings(f"{LOSS}.loss_mode={mode}", f"{key}=token-sum")).loss_agg_mode == "token-sum"


@effect(f"{ACTOR}.tau_pos", f"{ACTOR}.tau_neg")
def test_tau_is_the_temperature_of_sapo_s_gate(key, settings):
    advantage = 1.0 if key.endswith("pos") else -1.0
    for tau in (0.5, 2.0):
        config = settings(f"{LOSS}.loss_mode=sapo", f"{key}={tau}")
        gate = 4 / tau / (1 + math.exp(-tau))
        assert token_loss(config, ratio=2.0, advantage=advantage) == pytest.approx(-advantage * gate)
        assert token_loss(config, ratio=2.0, advantage=-advantage) != pytest.approx(advantage * gate)


@effect(f"{LOSS}.dro_beta")
def test_dro_beta_weighs_the_squared_log_ratio(key, settings):
    for beta in (0.2, 2.0):
        found, _ = loss_of(
            settings(f"{LOSS}.loss_mode=dro", f"{key}={beta}"), log_probs=[-1.0], old=[-3.0], advantages=[1.0], rows=[0]
        )
        assert found == pytest.approx(1.0 + beta / 2 * 4)


@effect(f"{LOSS}.ppo_kl_coef")
def test_ppo_kl_coef_weighs_the_penalty_of_chosen_tokens(key, settings):
    for weight in (0.1, 3.0):
        loss = build_policy_loss(settings(f"{LOSS}.loss_mode=kl_cov", f"{key}={weight}"))
        losses, _ = loss.token_loss(
            log_probs=torch.tensor([math.log(0.5)] * 2),
            old_log_probs=torch.tensor([math.log(0.25)] * 2),
            advantages=torch.ones(2),
            chosen=torch.tensor([True, False]),
        )
        assert losses.tolist() == pytest.approx([-2 + weight * math.log(2), -2])


def chosen_of(config, ranks):
    """Of 40 tokens with covariances 0, 0, 1, 1, ... 19, 19, in the order of the batch, those that come as chosen."""
    signs = torch.tensor([1.0, -1.0] * 20)  # log-probabilities on both sides of their mean, and advantages too
    batch = batch_of([20, 20], prompt=0, old_log_probs=signs, advantages=signs * (torch.arange(40) // 2))
    ActorClient(ranks, config, timer=Timer(), step=lambda: 1).update(batch)
    (mini,) = ranks.sent[-1][1][0]
    chosen = {}
    for micro in mini.micro_batches:
        for row, index in enumerate(micro.index.tolist()):
            chosen[index] = micro.chosen[micro.row_of_token == row]
    return torch.cat([chosen[index] for index in sorted(chosen)]).nonzero()[:, 0].tolist()


@effect(f"{LOSS}.kl_cov_ratio")
def test_kl_cov_ratio_is_the_share_of_tokens_that_are_held(key, settings, ranks):
    for share, chosen in ((0.05, [38, 39]), (0.1, [36, 37, 38, 39])):
        config = settings(*GRPO, f"{LOSS}.loss_mode=kl_cov", f"{key}={share}")
        assert chosen_of(config, ranks) == chosen


@effect(f"{LOSS}.clip_cov_ratio")
def test_clip_cov_ratio_is_the_share_of_tokens_that_are_left_out(key, settings, ranks):
    for share, count in ((0.001, 1), (0.05, 2), (1.0, 6)):
        chosen = chosen_of(settings(*GRPO, f"{LOSS}.loss_mode=clip_cov", f"{key}={share}"), ranks)
        assert len(chosen) == count
        assert set(chosen) <= set(range(4, 10))  # covariances between 1 and 5


@effect(f"{LOSS}.clip_cov_lb", f"{LOSS}.clip_cov_ub")
def test_clip_cov_chooses_within_its_band(key, settings, ranks):
    every = (*GRPO, f"{LOSS}.loss_mode=clip_cov", f"{LOSS}.clip_cov_ratio=1")
    assert chosen_of(settings(*every), ranks) == [4, 5, 6, 7, 8, 9]
    assert chosen_of(settings(*every, f"{key}=3"), ranks) == ([8, 9] if key.endswith("lb") else [4, 5])


@effect(f"{LOSS}.loss_mode")
def test_clip_cov_has_old_log_probs_computed_even_for_one_update(key, settings, ranks):
    for mode, passes in (("vanilla", 0), ("kl_cov", 0), ("clip_cov", 1)):
        run, _ = run_of(settings(*GRPO, f"{key}={mode}"), ranks)
        ranks.sent.clear()
        run.roles.actor.log_probs(batch_of(LENGTHS))
        assert ranks.methods().count("log_probs") == passes
