"""From packed tokens to log-probabilities and values. The shift by one token happens here and nowhere else."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from laurel.batch.token_batch import TokenBatch
from laurel.models.attention import Packing, Shared, use
from laurel.models.heads import token_log_probs
from laurel.models.load import ValueModel, backbone_of


def response_positions(batch: TokenBatch) -> Tensor:
    """(R,) int64: which tokens the policy sampled. Each needs a token before it, in its row, that predicts it."""
    positions = batch.response_mask.nonzero()[:, 0]
    starts = batch.position_ids[positions] == 0
    if bool(starts.any()):
        rows = batch.row_of_token[positions[starts]].tolist()
        raise ValueError(f"rows {rows[:8]} begin with a sampled token; a response needs at least one prompt token")
    return positions


class PolicyForward(nn.Module):
    """A causal model as log-probabilities of the sampled tokens of a batch. It is FSDP's root: embedding and head are
    gathered while it runs."""

    module: Any

    def __init__(self, module: nn.Module, temperature: float):
        super().__init__()
        self.module, self.temperature = module, temperature

    def forward(self, batch: TokenBatch, positions: Tensor, *, entropy: bool) -> tuple[Tensor, Tensor | None]:
        """``log_probs[t]`` and entropy of the distribution that token t is drawn from, both (T,) float32; 0 at tokens
        that were not sampled. The hidden state before token t predicts it, so only those states go through the head.
        """
        head = self.module.get_output_embeddings()
        log_probs, entropies = token_log_probs(
            states_before(self.module, batch, positions),
            head.weight,
            batch.input_ids[positions],
            temperature=self.temperature,
            entropy=entropy,
            bias=head.bias,
        )
        return _spread(log_probs, positions, batch), None if entropies is None else _spread(entropies, positions, batch)


class ValueForward(nn.Module):
    """A value model as the value of the state that each sampled token of a batch was drawn from."""

    def __init__(self, module: ValueModel):
        super().__init__()
        self.module = module

    def forward(self, batch: TokenBatch, positions: Tensor) -> Tensor:
        """``values[t]`` is the value of the tokens before t; (T,) float32, 0 at tokens that were not sampled."""
        hidden = states_before(self.module, batch, positions)
        head = self.module.value_head
        values = head(hidden.to(head.weight.dtype))[:, 0].float()
        return _spread(values, positions, batch)


def states_before(module: Any, batch: TokenBatch, positions: Tensor) -> Tensor:
    """(R, H): the last hidden state of the token before each of ``positions`` (R,), rows not seeing each other.

    A prompt that several rows of one group begin with is computed once: with n samples of a prompt of P tokens and
    responses of R, that is P + n R tokens instead of n (P + R).
    """
    backbone = backbone_of(module)
    use(backbone)
    shared = shared_prompts(batch)
    tokens, wanted = batch.input_ids, positions - 1
    places = batch.position_ids
    if shared is not None:
        tokens, places, wanted = tokens[shared.kept], places[shared.kept], shared.source[wanted]
    output = backbone(
        input_ids=tokens[None],
        position_ids=places[None],
        use_cache=False,
        packing=Packing.of(batch.cu_seqlens, tokens.device, shared),
    )
    return output.last_hidden_state[0].index_select(0, wanted)


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
    return Shared(kept, number[source])


def _spread(values: Tensor, positions: Tensor, batch: TokenBatch) -> Tensor:
    """(R,) to (T,), 0 elsewhere."""
    return torch.zeros(batch.token_count, dtype=values.dtype, device=values.device).index_put((positions,), values)
