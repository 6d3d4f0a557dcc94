"""From packed tokens to log-probabilities and values. The shift by one token happens here and nowhere else."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from laurel.batch.token_batch import TokenBatch
from laurel.models.attention import Packing, use
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
        hidden = hidden_states(self.module, batch)
        head = self.module.get_output_embeddings()
        log_probs, entropies = token_log_probs(
            hidden.index_select(0, positions - 1),
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
        hidden = hidden_states(self.module, batch).index_select(0, positions - 1)
        head = self.module.value_head
        values = head(hidden.to(head.weight.dtype))[:, 0].float()
        return _spread(values, positions, batch)


def hidden_states(module: Any, batch: TokenBatch) -> Tensor:
    """(T, H): the last hidden state of each token, rows not seeing each other."""
    backbone = backbone_of(module)
    use(backbone)
    output = backbone(
        input_ids=batch.input_ids[None],
        position_ids=batch.position_ids[None],
        use_cache=False,
        packing=Packing.of(batch.cu_seqlens, batch.input_ids.device),
    )
    return output.last_hidden_state[0]


def _spread(values: Tensor, positions: Tensor, batch: TokenBatch) -> Tensor:
    """(R,) to (T,), 0 elsewhere."""
    return torch.zeros(batch.token_count, dtype=values.dtype, device=values.device).index_put((positions,), values)
