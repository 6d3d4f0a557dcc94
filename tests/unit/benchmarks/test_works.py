from statistics import median

from benchmarks.words import spaced
from benchmarks.works import FULL, SMALL, Work, same_slots, training_rows, warm_up


def test_works_are_those_of_the_targets():
    counts = {name: (work.sequences, work.prompt, work.response, work.slots) for name, work in FULL.items()}
    assert counts == {
        "G": (1024, 128, 512, 1024),
        "S": (2048, 128, 1024, 512),
        "V": (1319, 128, 512, 1024),
        "L": (512, 512, 1024, 512),
    }
    assert sum(FULL["G"].lengths()) == 1024 * 512
    assert [name for name, work in FULL.items() if work.greedy] == ["V"]


def test_ragged_lengths_are_log_normal_and_the_same_each_time():
    lengths = FULL["S"].lengths()
    assert lengths == FULL["S"].lengths()
    assert len(lengths) == 2048
    assert 190 < median(lengths) < 210
    assert min(lengths) >= 1
    assert max(lengths) == 1024, "the tail is cut there"
    between = sum(200 / 1.822 < n < 200 * 1.822 for n in lengths) / 2048  # exp(0.6): one standard deviation
    assert 0.65 < between < 0.72


def test_samples_of_a_prompt_follow_each_other():
    work = SMALL["G"]
    asked = work.asked(512)
    assert [one.group for one in asked] == [0] * 4 + [1] * 4 + [2] * 4 + [3] * 4
    assert len({one.prompt for one in asked}) == 4
    assert {len(one.prompt) for one in asked} == {16}
    assert all(token in spaced(512) for one in asked for token in one.prompt)
    assert [one.tokens for one in warm_up(asked)] == [1] * 16


def test_a_ragged_work_is_compared_with_full_slots():
    same = same_slots(FULL["S"])
    assert (same.name, same.sequences, same.response, same.slots) == ("S=", 512, 512, 512)
    assert same.longest <= FULL["S"].longest, "one engine serves both"


def test_training_rows_carry_the_works_lengths():
    work = Work("x", "", 2, 2, 4, 9, slots=4, median=3, sigma=0.5)
    rows = training_rows(work, 512)
    assert [len(response) for _, _, response in rows] == work.lengths()
    assert [group for group, _, _ in rows] == [0, 0, 1, 1]
    assert rows == training_rows(work, 512)
