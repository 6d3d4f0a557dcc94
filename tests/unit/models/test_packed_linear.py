import torch
from torch import nn

from laurel.models.packed_linear import PackedLinears


class Doubled(nn.Linear):
    """A subclass with a product of its own, which must be left alone."""

    def forward(self, input):
        return 2 * super().forward(input)


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(24, 40), nn.SiLU(), nn.Linear(40, 16, bias=False), Doubled(16, 8))


def test_the_same_product_with_and_without_bias():
    module, packed = network(), PackedLinears(network())
    packed = PackedLinears(module)
    packed.pack()
    for shape in ((1, 24), (7, 24), (1, 130, 24)):
        x = torch.randn(shape)
        with torch.inference_mode():
            plain = module(x)
            with packed.used():
                assert "forward" in vars(module[0])
                assert "forward" not in vars(module[3])
                torch.testing.assert_close(module(x), plain, atol=1e-5, rtol=1e-5)
    assert "forward" not in vars(module[0])


def test_an_update_in_place_makes_the_copies_stale():
    module = network()
    packed = PackedLinears(module)
    assert not packed.ready
    packed.pack()
    assert packed.ready
    with torch.no_grad():
        module[0].weight.add_(1.0)
    assert not packed.ready
    x = torch.randn(3, 24)
    with torch.inference_mode():
        plain = module(x)
        with packed.used():  # not ready: the plain product, never the old weights
            assert torch.equal(module(x), plain)
        packed.pack()
        with packed.used():
            torch.testing.assert_close(module(x), plain, atol=1e-4, rtol=1e-5)
    packed.forget()
    assert not packed.ready


def test_gradients_work_after_use():
    module = network()
    packed = PackedLinears(module)
    packed.pack()
    with torch.inference_mode(), packed.used():
        module(torch.randn(2, 24))
    module(torch.randn(2, 24)).sum().backward()
    assert module[0].weight.grad is not None


def test_other_dtypes_keep_their_own_product():
    packed = PackedLinears(network().to(torch.bfloat16))
    packed.pack()
    assert not packed.ready
