import pytest
import torch
from torch.autograd import gradcheck

from laurel.models.heads import chunk_tokens, logit_grad_squares, token_log_probs


def random(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def test_hand_worked_example():
    """Logits (0, ln 3), temperature 1: p = (1/4, 3/4). At temperature 1/2 logits double: p = (1/10, 9/10)."""
    hidden, weight = torch.tensor([[1.0], [1.0]]), torch.tensor([[0.0], [3.0]]).log().nan_to_num(neginf=0.0)
    targets = torch.tensor([0, 1])
    log_probs, entropy = token_log_probs(hidden, weight, targets, entropy=True)
    torch.testing.assert_close(log_probs.exp(), torch.tensor([0.25, 0.75]))
    torch.testing.assert_close(entropy, torch.full((2,), 0.5623351446))  # -(1/4 ln 1/4 + 3/4 ln 3/4)
    sharper, nothing = token_log_probs(hidden, weight, targets, temperature=0.5)
    torch.testing.assert_close(sharper.exp(), torch.tensor([0.1, 0.9]))
    assert nothing is None


@pytest.mark.parametrize("chunk", [1, 3, 100])
def test_logit_grad_squares_are_the_squared_gradients_of_the_log_probs(chunk):
    hidden, weight, bias = random(7, 5), random(11, 5, seed=1), random(11, seed=2)
    targets = torch.tensor([0, 10, 3, 3, 7, 1, 9])
    logits = ((hidden @ weight.t() + bias) / 0.7).requires_grad_()
    logits.log_softmax(-1).gather(-1, targets[:, None]).sum().backward()
    found = logit_grad_squares(hidden, weight, targets, temperature=0.7, chunk=chunk, bias=bias)
    torch.testing.assert_close(found, logits.grad.square().sum(-1))


def test_logit_grad_squares_worked_example():
    """p = (1/4, 3/4): 1 - 2/4 + 10/16, and 1 - 6/4 + 10/16."""
    hidden, weight = torch.ones(2, 1), torch.tensor([[0.0], [3.0]]).log().nan_to_num(neginf=0.0)
    found = logit_grad_squares(hidden, weight, torch.tensor([0, 1]))
    torch.testing.assert_close(found, torch.tensor([1.125, 0.125]))
    assert logit_grad_squares(hidden[:0], weight, torch.zeros(0, dtype=torch.int64)).shape == (0,)


@pytest.mark.parametrize("chunk", [1, 3, 7, 100])
def test_any_chunk_gives_values_and_gradients_of_the_whole(chunk):
    hidden, weight, bias = random(7, 5), random(11, 5, seed=1), random(11, seed=2)
    targets = torch.tensor([0, 10, 3, 3, 7, 1, 9])
    wanted = [x.clone().requires_grad_() for x in (hidden, weight, bias)]
    log_p = ((wanted[0] @ wanted[1].t() + wanted[2]) / 0.7).log_softmax(-1)
    expected = log_p.gather(-1, targets[:, None])[:, 0], -(log_p.exp() * log_p).sum(-1)
    got = [x.clone().requires_grad_() for x in (hidden, weight, bias)]
    found = token_log_probs(got[0], got[1], targets, temperature=0.7, chunk=chunk, entropy=True, bias=got[2])
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, atol=1e-12, rtol=1e-12)
    for outputs in (expected, found):
        (outputs[0] @ random(7, seed=3) + outputs[1] @ random(7, seed=4)).backward()
    for a, b in zip(got, wanted, strict=True):
        torch.testing.assert_close(a.grad, b.grad, atol=1e-12, rtol=1e-12)


def test_gradcheck():
    targets = torch.tensor([2, 0, 1])
    inputs = (random(3, 4).requires_grad_(), random(5, 4, seed=1).requires_grad_())
    assert gradcheck(lambda h, w: token_log_probs(h, w, targets, temperature=1.3, chunk=2, entropy=True), inputs)


def test_bfloat16_logits_are_normalized_in_float32_and_weight_gradients_add_up_in_float32():
    """256 tokens that each add 1/512 to one weight's gradient: summed in bfloat16 it would stop growing at 1/2."""
    hidden = torch.full((1024, 1), 1 / 512, dtype=torch.bfloat16)
    weight = torch.zeros(2, 1, dtype=torch.bfloat16, requires_grad=True)
    log_probs, _ = token_log_probs(hidden, weight, torch.zeros(1024, dtype=torch.int64), chunk=1)
    assert log_probs.dtype == torch.float32
    log_probs.sum().backward()
    assert weight.grad.tolist() == [[1.0], [-1.0]]  # 1024 * (1 - 1/2) / 512


def test_never_holds_logits_of_all_tokens(monkeypatch):
    widest = []
    plain = torch.Tensor.logsumexp

    def watched(self, *args, **kwargs):
        widest.append(tuple(self.shape))
        return plain(self, *args, **kwargs)

    monkeypatch.setattr(torch.Tensor, "logsumexp", watched)
    token_log_probs(random(10, 4), random(6, 4), torch.zeros(10, dtype=torch.int64), chunk=4)
    assert widest == [(4, 6), (4, 6), (2, 6)]


def test_no_tokens_give_no_log_probs_but_a_gradient():
    weight = random(6, 4).requires_grad_()
    log_probs, entropy = token_log_probs(random(0, 4), weight, torch.zeros(0, dtype=torch.int64), entropy=True)
    assert log_probs.shape == entropy.shape == (0,)
    log_probs.sum().backward()
    assert float(weight.grad.abs().sum()) == 0.0


def test_chunk_bounds_the_logits():
    assert chunk_tokens(49152, torch.device("cpu")) == 1365  # 256 MiB of float32
    assert chunk_tokens(1 << 30, torch.device("cpu")) == 16


def test_temperature_zero_is_refused():
    with pytest.raises(ValueError, match="temperature=0"):
        token_log_probs(random(1, 2), random(3, 2), torch.zeros(1, dtype=torch.int64), temperature=0)
