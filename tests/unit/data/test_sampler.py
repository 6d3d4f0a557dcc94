from __future__ import annotations

import pytest

from laurel.data.sampler import PromptOrder


def test_every_epoch_is_a_permutation_and_epochs_differ():
    order = PromptOrder(10, seed=1, shuffle=True)
    epochs = [order.take(10 * e, 10) for e in range(4)]
    assert all(sorted(epoch) == list(range(10)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 4
    assert all(epoch != list(range(10)) for epoch in epochs)


def test_the_order_depends_on_seed_and_consumed_alone():
    whole = PromptOrder(7, seed=5, shuffle=True).take(0, 30)
    for step in (1, 3, 4, 10):
        pieces = [PromptOrder(7, seed=5, shuffle=True).take(at, step) for at in range(0, 30, step)]
        assert [row for piece in pieces for row in piece][:30] == whole
    assert PromptOrder(7, seed=6, shuffle=True).take(0, 30) != whole


def test_a_batch_spans_epochs_and_drops_no_row():
    order = PromptOrder(5, seed=0, shuffle=True)
    taken = [row for at in range(0, 15, 3) for row in order.take(at, 3)]
    assert [sorted(taken[i : i + 5]) for i in (0, 5, 10)] == [[0, 1, 2, 3, 4]] * 3
    assert len(order.take(2, 12)) == 12


def test_without_shuffle_the_order_is_that_of_the_file():
    assert PromptOrder(3, seed=9, shuffle=False).take(2, 5) == [2, 0, 1, 2, 0]


def test_the_order_of_a_seed_never_changes():
    """Resumed runs rely on these numbers; a change here breaks them."""
    assert PromptOrder(8, seed=1, shuffle=True).take(0, 8) == [6, 2, 3, 7, 1, 4, 5, 0]
    assert PromptOrder(8, seed=-1, shuffle=True).take(8, 8) == [3, 6, 2, 1, 5, 7, 0, 4]


def test_bad_arguments_are_named():
    with pytest.raises(ValueError, match="count=0"):
        PromptOrder(0, seed=1, shuffle=True)
    with pytest.raises(ValueError, match="consumed=-1"):
        PromptOrder(3, seed=1, shuffle=True).take(-1, 2)
