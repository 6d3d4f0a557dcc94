import pytest
import torch

from laurel.weights.fingerprint import fingerprint, tensor_checksum


def numbers(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int8])
@pytest.mark.parametrize("count", [1, 3, 8, 70_001, 300_000])
def test_any_changed_element_changes_it(dtype, count):
    tensor = (numbers(count) * 50).to(dtype)
    before = tensor_checksum(tensor)
    assert 0 <= before < 2**64
    for place in {0, count // 2, count - 1}:
        changed = tensor.clone()
        changed[place] += 1
        assert tensor_checksum(changed) != before


def test_one_bit_a_sign_of_zero_and_the_order_matter():
    assert tensor_checksum(torch.tensor([0.0])) != tensor_checksum(torch.tensor([-0.0]))
    assert tensor_checksum(torch.tensor([1.0, 2.0, 3.0, 4.0])) != tensor_checksum(torch.tensor([3.0, 4.0, 1.0, 2.0]))
    a = numbers(1 << 17)
    assert tensor_checksum(a) != tensor_checksum(a.roll(1 << 16))  # whole periods exchanged
    b = a.clone()
    b.view(torch.int32)[77] ^= 1
    assert tensor_checksum(a) != tensor_checksum(b)


def test_it_depends_on_bits_alone():
    a = numbers(300, 70)
    assert tensor_checksum(a) == tensor_checksum(a.clone()) == tensor_checksum(a.view(-1))
    assert tensor_checksum(a.t()) == tensor_checksum(a.t().contiguous())
    odd = numbers(1001, dtype=torch.bfloat16)[1:]  # not aligned to eight bytes
    assert tensor_checksum(odd) == tensor_checksum(odd.clone())
    assert tensor_checksum(torch.zeros(0)) == 0
    before = torch.get_num_threads()
    found = set()
    for threads in (1, 2):
        torch.set_num_threads(threads)
        found.add(tensor_checksum(a))
    torch.set_num_threads(before)
    assert len(found) == 1


def test_it_is_the_weighted_sum_of_words(monkeypatch):
    """Two words by hand, with weights 3 and 5: 7 * 3 + (2**64 - 1) * 5 modulo 2**64 is 16."""
    import laurel.weights.fingerprint as room

    monkeypatch.setattr(room, "_position_weights", lambda device: torch.tensor([3, 5] + [1] * (room._PERIOD - 2)))
    assert tensor_checksum(torch.tensor([7, -1])) == 16


def test_known_value():
    """Fixed for ever: fingerprints of one version of Laurel are compared over processes and machines."""
    assert tensor_checksum(torch.arange(200_000, dtype=torch.int64)) == KNOWN


def test_fingerprint_of_names():
    a, b = numbers(3), numbers(3, seed=1)
    found = fingerprint({"a": a, "b": b}, 7)
    assert found.version == 7
    assert found.tensors == {"a": tensor_checksum(a), "b": tensor_checksum(b)}
    assert fingerprint(iter([("a", a), ("b", b)]), 7) == found


KNOWN = 6656115902497045880
