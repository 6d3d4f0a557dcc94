import pytest
import torch

from laurel.batch.token_batch import TokenBatch
from laurel.config.tree import Actor, Ref, Rollout
from laurel.workers.dispatch import (
    Budget,
    UpdatePlan,
    group_order,
    log_prob_budget,
    put_together,
    share_forward,
    share_updates,
    slim,
    update_budget,
    updates,
)


def batch_of(lengths, group_size=1):
    """Token t of row r has id 100 r + t; the first token is the prompt; column x is the id halved."""
    rows = range(len(lengths))
    ids = torch.tensor([100 * row + t for row in rows for t in range(lengths[row])])
    return TokenBatch(
        {
            "input_ids": ids,
            "position_ids": torch.tensor([t for row in rows for t in range(lengths[row])]),
            "response_mask": torch.tensor([t > 0 for row in rows for t in range(lengths[row])]),
            "x": ids / 2,
        },
        {
            "index": torch.arange(len(lengths)),
            "group": torch.arange(len(lengths)) // group_size,
            "weight": torch.ones(len(lengths)),
            "score": torch.zeros(len(lengths)),
        },
        torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()]),
    )


@pytest.mark.parametrize("ranks", [1, 2, 3, 7])
@pytest.mark.parametrize("budget", [Budget(10), Budget(None, 1), Budget(None)])
def test_what_ranks_answer_is_put_together_as_if_computed_at_once(ranks, budget):
    batch = batch_of([4, 9, 3, 7, 2]).select([3, 1, 4, 0, 2])
    shares = share_forward(slim(batch, ("input_ids",)), budget, ranks=ranks)
    assert len({len(share) for share in shares}) == 1, "a collective needs as many forwards on every rank"
    answers = [[micro.input_ids * 3.0 for micro in share] for share in shares]
    assert torch.equal(put_together(batch, "tripled", shares, answers), batch.input_ids * 3.0)


def test_slim_leaves_out_what_a_forward_does_not_read():
    small = slim(batch_of([2, 3]), ("input_ids", "old_log_probs"))
    assert list(small.tokens) == ["input_ids"]
    assert list(small.rows) == ["index", "weight"]
    assert small.cu_seqlens.tolist() == [0, 2, 5]


def plan(**changes):
    return UpdatePlan(
        **{"prompts_per_update": 2, "epochs": 1, "shuffle": False, "seed": 7, "budget": Budget(100), **changes}
    )


def test_updates_take_whole_groups_in_order_and_again_each_epoch():
    batch = batch_of([2] * 6, group_size=2)
    assert [mini.index.tolist() for mini in updates(batch, plan(epochs=2), step=1)] == [[0, 1, 2, 3], [4, 5]] * 2


def rows(minis):
    return [row for mini in minis for row in mini.index.tolist()]


def test_shuffled_updates_depend_on_seed_step_and_epoch_alone():
    batch, mixed = batch_of([2] * 40), plan(shuffle=True, epochs=2)
    minis = updates(batch, mixed, step=3)
    assert rows(minis) == rows(updates(batch, mixed, step=3))
    first, second = rows(minis[:20]), rows(minis[20:])
    assert sorted(first) == sorted(second) == list(range(40))
    others = [second, list(range(40)), rows(updates(batch, plan(shuffle=True), step=4))]
    others.append(rows(updates(batch, plan(shuffle=True, seed=8), step=3)))
    assert first not in others


def test_the_order_never_changes_between_versions():
    """Resuming a run must cut its batches as the run that was interrupted did."""
    assert group_order(8, seed=1, step=2, epoch=0) == [6, 2, 0, 3, 5, 7, 4, 1]


def test_each_rank_gets_its_share_of_every_update_with_the_counts_of_the_whole():
    batch = batch_of([4, 9, 3, 7])
    shares = share_updates(batch, plan(), step=1, ranks=3)
    assert [len(share) for share in shares] == [2, 2, 2]
    # rows 0 and 1 have 3 + 8 sampled tokens, rows 2 and 3 have 2 + 6
    assert [[(mini.token_count, mini.row_count) for mini in share] for share in shares] == [
        [(11.0, 2.0), (8.0, 2.0)]
    ] * 3
    for update, rows in ((0, [0, 1]), (1, [2, 3])):
        micros = [micro for share in shares for micro in share[update].micro_batches]
        assert sorted(row for micro in micros for row in micro.index[micro.weight > 0].tolist()) == rows


def test_a_micro_batch_size_replaces_the_token_budget_unless_dynamic_is_asked_for():
    assert update_budget(Actor(ppo_max_token_len_per_gpu=77)) == Budget(77)
    assert update_budget(Actor(ppo_micro_batch_size_per_gpu=4)) == Budget(None, 4)
    both = Actor(ppo_micro_batch_size_per_gpu=4, use_dynamic_bsz=True, ppo_max_token_len_per_gpu=77)
    assert update_budget(both) == Budget(77)
    assert log_prob_budget(Rollout(log_prob_micro_batch_size_per_gpu=8)) == Budget(None, 8)
    assert log_prob_budget(Ref(log_prob_max_token_len_per_gpu=99)) == Budget(99)
