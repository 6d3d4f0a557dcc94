import pytest

from benchmarks import floor
from benchmarks.shapes import Sizes, fields_of, sizes_of
from benchmarks.works import FULL
from laurel.tracking.flops import training_flops

SMALL = Sizes(backbone=10, head=2, embedding=2, layers=1, width=2, cache_per_token=8)


def test_attention_pairs():
    assert floor.attention_pairs(3) == 6
    assert floor.attention_pairs(3, 1) == 5


def test_prefill_by_hand():
    # 2 * 10 * (3 + 2) products, attention 4 * 1 * 2 * (6 + 3)
    assert floor.prefill(SMALL, [3, 2], flops=1.0) == 100 + 72


def test_decode_by_hand():
    """A response of 2 on a prompt of 2: two steps, which look at 2 and 3 places."""
    # Arithmetic for nothing: 2 steps * 12 weights * 2 bytes, and 5 places * 8 numbers * 2 bytes
    assert floor.decode(SMALL, [(2, 2)], 1, flops=1e30, moved=1.0) == pytest.approx(48 + 80)
    # Traffic for nothing: 2 * 12 * 2 tokens, and 4 * 1 * 2 * 5 places
    assert floor.decode(SMALL, [(2, 2)], 1, flops=1.0, moved=1e30) == pytest.approx(48 + 40)


def test_fewer_slots_read_the_weights_more_often():
    four = [(2, 2)] * 4
    weights = [floor.decode(SMALL, four, slots, flops=1e30, moved=1.0) - 4 * 80 for slots in (4, 2, 1)]
    assert weights == pytest.approx([48, 96, 192])


def test_training_is_what_the_product_counts():
    assert floor.training(SMALL, computed=3, scored=1, lengths=[3], passes=1) == 100
    everything = floor.training(SMALL, computed=7, scored=7, lengths=[3, 4])
    assert everything == training_flops(matmul_parameters=12, layers=1, hidden=2, lengths=[3, 4])


def test_work_g_on_an_h200():
    """The design's estimate for rollout and update together was about 3.7 s."""
    sizes, work = sizes_of(fields_of("0.5b")), FULL["G"]
    sequences = [(work.prompt, length) for length in work.lengths()]
    seconds = floor.rollout(sizes, [work.prompt] * work.prompts, sequences, work.slots)
    assert seconds == pytest.approx(1.3, abs=0.1)
    flops = floor.training(sizes, computed=1024 * 640, scored=1024 * 640, lengths=[640] * 1024)
    assert seconds + flops / floor.FLOPS == pytest.approx(3.9, abs=0.25)
