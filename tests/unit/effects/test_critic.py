"""Effects of critic.*: whether there is one, the updates that travel to the ranks, and the value loss."""

import pytest
import torch
from unit.effects.cases import ACTOR, CRITIC, PPO, batch_of, noise, run_of
from unit.effects.registry import effect

from laurel.algos.table import build_value_loss
from laurel.tracking.timer import Timer
from laurel.trainer.build import prepare
from laurel.types import LaurelError
from laurel.workers.clients import CriticClient
from laurel.workers.host import RankHost, Updates

LENGTHS = (4, 6, 3, 5)
MINI = f"{CRITIC}.ppo_mini_batch_size"


def updates(config, ranks):
    """The mini-batches that rank 0 gets for a batch of four groups of one row."""
    batch = batch_of(LENGTHS, values=noise(18), returns=noise(18))
    CriticClient(ranks, config, timer=Timer(), step=lambda: 1).update(batch)
    method, (mini_batches,) = ranks.sent[-1]
    assert method == "update_critic"
    return mini_batches


@effect(f"{CRITIC}.enable")
def test_enable_decides_whether_a_critic_is_trained(key, settings, ranks):
    for value, role in ((True, "CriticClient"), (False, "NoCritic")):
        config = settings(*PPO, f"{key}={value}")
        assert type(run_of(config, ranks)[0].roles.critic).__name__ == role
        host = RankHost(config, rank=0, world=1, device="cpu")
        host.build("", Updates(1, 1))
        try:
            if value:
                assert host.critic.role == "critic"
            else:
                with pytest.raises(LaurelError, match=r"critic.enable is off"):
                    _ = host.critic
        finally:
            host.close()


@effect(MINI)
def test_mini_batch_size_is_groups_per_critic_update(key, settings, ranks):
    actor = f"{ACTOR}.ppo_mini_batch_size=2"
    for given, counts in (((), [2, 2]), ((f"{key}=1",), [1] * 4), ((f"{key}=4",), [4])):
        config = settings(actor, *given)
        assert [mini.row_count for mini in updates(config, ranks)] == counts
        assert prepare(config).updates.critic == 2 * len(counts)  # of 2 steps: 10 rows, batches of 4


@effect(f"{CRITIC}.ppo_epochs")
def test_ppo_epochs_repeats_the_critic_s_updates(key, settings, ranks):
    for given, count in (((), 2), ((f"{key}=3",), 3)):
        config = settings(f"{ACTOR}.ppo_epochs=2", *given)
        assert len(updates(config, ranks)) == count
        assert prepare(config).updates.critic == 2 * count


def sizes(config, ranks, what):
    (mini,) = updates(config, ranks)
    CriticClient(ranks, config, timer=Timer(), step=lambda: 1).values(batch_of(LENGTHS))
    method, (forwards,) = ranks.sent[-1]
    assert method == "values"
    assert [getattr(micro, what) for micro in forwards] == [getattr(micro, what) for micro in mini.micro_batches]
    return [getattr(micro, what) for micro in forwards]


@effect(f"{CRITIC}.ppo_micro_batch_size_per_gpu")
def test_micro_batch_size_is_rows_per_forward(key, settings, ranks):
    for given, rows in (((), [4]), ((f"{key}=1",), [1] * 4), ((f"{key}=3",), [3, 1])):
        assert sizes(settings(*given), ranks, "row_count") == rows


@effect(f"{CRITIC}.use_dynamic_bsz")
def test_dynamic_bsz_packs_by_tokens_though_a_size_is_given(key, settings, ranks):
    for value, rows in ((False, [1] * 4), (True, [4])):
        config = settings(f"{CRITIC}.ppo_micro_batch_size_per_gpu=1", f"{key}={value}")
        assert sizes(config, ranks, "row_count") == rows


@effect(f"{CRITIC}.ppo_max_token_len_per_gpu")
def test_token_budget_bounds_a_forward(key, settings, ranks):
    for budget, tokens in ((18, [18]), (9, [9, 9]), (1, [6, 5, 4, 3])):
        assert sizes(settings(f"{key}={budget}"), ranks, "token_count") == tokens


def value_loss(config, *, values, returns, rows):
    """Loss of sampled tokens that belong to ``rows``; old values are 0."""
    loss, _ = build_value_loss(config)(
        values=torch.tensor(values),
        old_values=torch.zeros(len(values)),
        returns=torch.tensor(returns),
        mask=torch.ones(len(values), dtype=torch.bool),
        row_of_token=torch.tensor(rows),
        weight=torch.ones(max(rows) + 1),
        token_count=float(len(values)),
        row_count=float(max(rows) + 1),
    )
    return float(loss)


@effect(f"{CRITIC}.cliprange_value")
def test_cliprange_value_bounds_what_a_change_gains(key, settings):
    # value 1, return 2: (2 - min(1, range))^2 / 2
    for limit, loss in ((0.5, 1.125), (0.25, 1.53125), (2.0, 0.5)):
        found = value_loss(settings(f"{key}={limit}"), values=[1.0], returns=[2.0], rows=[0])
        assert found == pytest.approx(loss)


@effect(f"{CRITIC}.loss_agg_mode")
def test_loss_agg_mode_weighs_tokens_and_rows(key, settings):
    expected = {  # token losses (2, 2) and (8)
        "token-mean": 4.0,
        "token-sum": 12.0,
        "seq-mean-token-sum": 6.0,
        "seq-mean-token-mean": 5.0,
        "seq-mean-token-sum-norm": 6.0 / 8,  # data.max_response_length
    }
    for mode, loss in expected.items():
        found = value_loss(settings(f"{key}={mode}"), values=[0.0, 0.0, 0.0], returns=[2.0, -2.0, 4.0], rows=[0, 0, 1])
        assert found == pytest.approx(loss), mode


@effect(f"{ACTOR}.shuffle")
def test_the_critic_shuffles_as_the_actor_does(key, settings, ranks):
    orders = {}
    for value in (False, True):
        loaded = settings.loaded(f"{MINI}=1", "data.train_batch_size=4", f"{key}={value}")
        orders[value] = [int(mini.micro_batches[0].group[0]) for mini in updates(loaded.config, ranks)]
        assert not any(key in note for note in loaded.notes)  # the actor updates once, the critic in parts
    assert orders[False] == [0, 1, 2, 3] != orders[True]
