from laurel.trainer.cadence import Cadence, ValidationCadence, total_steps


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


def test_validation_at_the_start_of_a_new_and_of_a_resumed_run():
    cadence = ValidationCadence(5, last=12, before_train=True, has_data=True)
    assert cadence.at_start(0, done=False)
    assert cadence.at_start(10, done=False), "it was due at 10, and the run ended before it"
    assert not cadence.at_start(10, done=True)
    assert not cadence.at_start(9, done=False), "none was due"
    assert cadence.at_start(12, done=False), "the last one too"
    assert not ValidationCadence(5, last=12, before_train=False, has_data=True).at_start(0, done=False)
    assert not ValidationCadence(5, last=12, before_train=True, has_data=False).at_start(0, done=False)
