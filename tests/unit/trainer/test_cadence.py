from laurel.trainer.cadence import Cadence, total_steps


def test_every_n_steps_and_at_the_last():
    assert [step for step in range(1, 11) if Cadence(4, last=10).due(step)] == [4, 8, 10]


def test_without_a_frequency_only_the_last():
    assert [step for step in range(1, 11) if Cadence(-1, last=10).due(step)] == [10]


def test_a_batch_may_span_epochs_so_no_row_is_lost_before_the_end():
    assert total_steps(rows=10, batch_size=4, epochs=2, limit=None) == 5
    assert total_steps(rows=1024, batch_size=1024, epochs=15, limit=None) == 15


def test_a_batch_larger_than_all_epochs_still_makes_a_step():
    assert total_steps(rows=3, batch_size=4, epochs=1, limit=None) == 1


def test_the_limit_wins_in_both_directions():
    assert total_steps(rows=10, batch_size=4, epochs=2, limit=3) == 3
    assert total_steps(rows=10, batch_size=4, epochs=2, limit=30) == 30
