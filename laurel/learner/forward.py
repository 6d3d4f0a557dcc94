"""From packed tokens to log-probabilities and values. The shift by one token happens here and nowhere else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from laurel.batch.token_batch import TokenBatch
from laurel.models.attention import Packing, Shared, use
from laurel.models.devices import moved
from laurel.models.heads import logit_grad_squares, token_log_probs
from laurel.models.load import ValueModel, backbone_of


def response_positions(batch: TokenBatch) -> Tensor:
    """(R,) int64: which tokens the policy sampled. Each needs a token before it, in its row, that predicts it."""
    positions = batch.response_mask.nonzero()[:, 0]
    starts = batch.position_ids[positions] == 0
    if bool(starts.any()):
        rows = batch.row_of_token[positions[starts]].tolist()
        raise ValueError(f"rows {rows[:8]} begin with a sampled token; a response needs at least one prompt token")
    return positions


@dataclass(frozen=True)
class LaidOut:
    """A micro-batch on the device that computes it, with everything that its forward passes need.

    ``positions`` (R,): the tokens that the policy sampled. ``input_ids`` and ``position_ids`` (C,) are what the model
    computes, ``wanted`` (R,) which of these C predicts each sampled token. ``queries`` (N,), on the CPU: how many of
    the C lie in each row.
    """

    batch: TokenBatch
    positions: Tensor
    input_ids: Tensor
    position_ids: Tensor
    wanted: Tensor
    packing: Packing
    queries: Tensor


def lay_out(batch: TokenBatch, device: torch.device) -> LaidOut:
    """From a micro-batch on the CPU, where the layout is computed: a GPU would be waited for at each question.

    A prompt that several rows of one group begin with is computed once: with n samples of a prompt of P tokens and
    responses of R, that is P + n R tokens instead of n (P + R).
    """
    positions = response_positions(batch)
    shared = shared_prompts(batch)
    tokens, places, wanted = batch.input_ids, batch.position_ids, positions - 1
    if shared is not None:
        tokens, places, wanted = tokens[shared.kept], places[shared.kept], shared.source[wanted]
    packing = Packing.of(batch.cu_seqlens, device, shared)
    queries = batch.lengths if shared is None else torch.searchsorted(shared.kept, batch.cu_seqlens).diff()
    positions, tokens, places, wanted = (moved(x, device) for x in (positions, tokens, places, wanted))
    return LaidOut(batch.map(lambda tensor: moved(tensor, device)), positions, tokens, places, wanted, packing, queries)


class PolicyForward(nn.Module):
    """A causal model as log-probabilities of the sampled tokens of a batch. It is FSDP's root: embedding and head are
    gathered while it runs."""

    module: Any

    def __init__(self, module: nn.Module, temperature: float):
        super().__init__()
        self.module, self.temperature = module, temperature

    def forward(
        self, laid: LaidOut, *, entropy: bool = False, grad_squares: bool = False, keep_logits: int = 0
    ) -> tuple[Tensor, Tensor | None]:
        """``log_probs[t]`` and entropy of the distribution that token t is drawn from, both (T,) float32; 0 at tokens
        that were not sampled. The hidden state before token t predicts it, so only those states go through the head.
        With ``grad_squares`` the squared norm of the gradient of ``log_probs[t]`` in the logits instead.
        """
        batch, positions = laid.batch, laid.positions
        head, targets = self.module.get_output_embeddings(), batch.input_ids[positions]
        states = states_before(self.module, laid)
        if grad_squares:
            squares = logit_grad_squares(states, head.weight, targets, temperature=self.temperature, bias=head.bias)
            return _spread(squares, positions, batch), None
        log_probs, entropies = token_log_probs(
            states,
            head.weight,
            targets,
            temperature=self.temperature,
            entropy=entropy,
            bias=head.bias,
            keep=keep_logits,
        )
        return _spread(log_probs, positions, batch), None if entropies is None else _spread(entropies, positions, batch)


class ValueForward(nn.Module):
    """A value model as the value of the state that each sampled token of a batch was drawn from."""

    def __init__(self, module: ValueModel):
        super().__init__()
        self.module = module

    def forward(self, laid: LaidOut) -> Tensor:
        """``values[t]`` is the value of the tokens before t; (T,) float32, 0 at tokens that were not sampled."""
        hidden = states_before(self.module, laid)
        head = self.module.value_head
        values = head(hidden.to(head.weight.dtype))[:, 0].float()
        return _spread(values, laid.positions, laid.batch)


def states_before(module: Any, laid: LaidOut) -> Tensor:
    """(R, H): the last hidden state of the token before each sampled one, rows not seeing each other."""
    backbone = backbone_of(module)
    use(backbone)
    output = backbone(
        input_ids=laid.input_ids[None], position_ids=laid.position_ids[None], use_cache=False, packing=laid.packing
    )
    states = output.last_hidden_state[0].index_select(0, laid.wanted)
    return states.to(backbone.get_input_embeddings().weight.dtype)  # a fast layer hands float32 on


def shared_prompts(batch: TokenBatch) -> Shared | None:
    """Which prompt tokens stand for those of other rows of their group; None if no two rows share one.

    Example: rows (5 6 | 7) and (5 6 | 8 9) of one group, prompts before the bar: tokens 0 1 2 5 6 are computed, and
    the second row's prompt is the first's: ``source`` is 0 1 2 0 1 3 4.
    """
    if not batch.has("group") or batch.row_count == 1:
        return None
    leader_of: dict[int, int] = {}
    leaders = [leader_of.setdefault(group, row) for row, group in enumerate(batch.group.tolist())]
    if len(leader_of) == batch.row_count:
        return None
    device, row = batch.input_ids.device, batch.row_of_token
    leader = torch.tensor(leaders, device=device)
    place = torch.arange(batch.token_count, device=device)
    within = place - batch.cu_seqlens[row]
    # A row's prompt ends where its first sampled token is
    prompt = batch.lengths.scatter_reduce(
        0, row, torch.where(batch.response_mask, within, batch.lengths[row]), reduce="amin"
    )
    candidate = (within < prompt[row]) & (leader[row] != row) & (prompt[leader] == prompt)[row]
    source = torch.where(candidate, batch.cu_seqlens[leader][row] + within, place)
    differs = torch.zeros_like(prompt).index_add_(0, row, (batch.input_ids[source] != batch.input_ids).long())
    source = torch.where((differs == 0)[row], source, place)
    kept = (source == place).nonzero()[:, 0]
    if kept.numel() == batch.token_count:
        return None
    number = torch.full_like(place, -1)
    number[kept] = torch.arange(kept.numel(), device=device)
    return Shared.of(kept, number[source])


def _spread(values: Tensor, positions: Tensor, batch: TokenBatch) -> Tensor:
    """(R,) to (T,), 0 elsewhere."""
    return torch.zeros(batch.token_count, dtype=values.dtype, device=values.device).index_put((positions,), values)
