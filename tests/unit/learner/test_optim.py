import pytest
import torch
from torch import nn

from laurel.config.tree import Optim
from laurel.learner.dist import ONE_RANK
from laurel.learner.optim import Optimizer, learning_rate
from laurel.types import LaurelError


def make(parameters, total=10, **optim):
    named = {f"p{i}": nn.Parameter(value) for i, value in enumerate(parameters)}
    settings = {"lr": 0.1, "weight_decay": 0.0, "clip_grad": 1e9, **optim}
    return Optimizer(named.items(), Optim(**settings), total_updates=total, ranks=ONE_RANK), list(named.values())


def rates(total, **optim):
    return [learning_rate(Optim(lr=1.0, **optim), update, total) for update in range(total)]


def test_warm_up_and_shapes():
    assert rates(4) == [1, 1, 1, 1]
    assert rates(5, lr_warmup_steps=4) == [0.25, 0.5, 0.75, 1, 1]
    assert rates(4, lr_warmup_steps_ratio=0.5) == [0.5, 1, 1, 1]
    assert rates(4, lr_warmup_steps=0, lr_warmup_steps_ratio=0.5) == [1, 1, 1, 1]
    cosine = rates(6, lr_warmup_steps=2, lr_scheduler_type="cosine")
    assert cosine == pytest.approx([0.5, 1, 1, 0.75, 0.25, 0])
    assert rates(5, lr_scheduler_type="cosine", min_lr_ratio=0.2) == pytest.approx(
        [1, 0.882843, 0.6, 0.317157, 0.2], abs=1e-6
    )
    assert learning_rate(Optim(lr=1.0, lr_scheduler_type="cosine"), 9, 6) == 0


def test_one_step_is_adamw():
    """First step of Adam: lr * sign(gradient); decoupled decay takes lr * weight_decay * p before."""
    optimizer, (p,) = make([torch.tensor([1.0, -2.0])], weight_decay=0.5)
    p.grad = torch.tensor([3.0, -4.0])
    step = optimizer.step()
    assert p.tolist() == pytest.approx([1 - 0.05 - 0.1, -2 + 0.1 + 0.1])
    assert step == (pytest.approx(5.0), pytest.approx(0.1), False)
    assert p.grad is None


def test_clipping_scales_the_global_norm():
    """Norm 5 over two tensors, limit 1: moments see a fifth."""
    optimizer, (a, b) = make([torch.zeros(1), torch.zeros(2)], clip_grad=1.0)
    a.grad, b.grad = torch.tensor([3.0]), torch.tensor([0.0, 4.0])
    assert optimizer.step().grad_norm == pytest.approx(5.0)
    moments = [optimizer.tensors()[f"exp_avg/p{i}"].tolist() for i in range(2)]
    assert moments == [pytest.approx([0.06]), pytest.approx([0.0, 0.08])]  # (1 - 0.9) * gradient / 5
    a.grad, b.grad = torch.tensor([0.3]), torch.tensor([0.0, 0.4])
    assert optimizer.step().grad_norm == pytest.approx(0.5)
    assert optimizer.tensors()["exp_avg/p0"].tolist() == pytest.approx([0.9 * 0.06 + 0.1 * 0.3])


def test_small_updates_of_bfloat16_weights_add_up_in_the_masters():
    """1e-3 is below half the spacing of bfloat16 at 1 (2^-8): added to it directly it is lost every time."""
    optimizer, (p,) = make([torch.ones(4, dtype=torch.bfloat16)], lr=1e-3)
    storage = p.data_ptr()
    lost = torch.ones(4, dtype=torch.bfloat16)
    for _ in range(10):
        (-p.float().sum()).backward()
        assert p.grad is None  # taken over in float32 as the backward ends
        optimizer.step()
        lost += 1e-3
    assert lost.tolist() == [1.0] * 4
    assert optimizer.masters["p0"].tolist() == pytest.approx([1.01] * 4)
    assert p.tolist() == [1.0078125] * 4
    assert p.data_ptr() == storage  # in place: an engine that shares it sees the new weights


def test_gradients_of_bfloat16_weights_add_up_in_float32():
    """1 and 256 times 2^-9: bfloat16 stays at 1, float32 gets to 1.5."""
    optimizer, (p,) = make([torch.zeros(1, dtype=torch.bfloat16)])
    p.sum().backward()
    for _ in range(256):
        (p * 2.0**-9).sum().backward()
    assert optimizer.step().grad_norm == 1.5


def test_a_gradient_that_is_not_finite_changes_nothing_and_three_in_a_row_stop():
    optimizer, (p,) = make([torch.ones(2)])
    for _ in range(2):
        p.grad = torch.tensor([1.0, float("nan")])
        assert optimizer.step().skipped
    assert p.tolist() == [1.0, 1.0]
    p.grad = torch.ones(2)
    assert not optimizer.step().skipped
    assert optimizer.counts() == {"updates": 3, "adam_step": 1, "skipped": 2, "skipped_in_a_row": 0}
    for _ in range(2):
        p.grad = torch.tensor([float("inf"), 0.0])
        optimizer.step()
    p.grad = torch.tensor([float("inf"), 0.0])
    with pytest.raises(LaurelError, match=r"inf in 3 updates in a row \(the last is update 6\)"):
        optimizer.step()


def test_frozen_parameters_are_left_alone():
    frozen = nn.Parameter(torch.ones(1), requires_grad=False)
    optimizer = Optimizer([("a", nn.Parameter(torch.ones(1))), ("b", frozen)], Optim(), total_updates=1, ranks=ONE_RANK)
    assert list(optimizer.parameters) == ["a"]
