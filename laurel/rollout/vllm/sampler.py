"""Sampling inside vLLM as Laurel defines it: each request's random numbers come of its own seed, and the log-prob of a
token is log_softmax(logits / temperature) over the whole vocabulary, before top-k and top-p.

vLLM reports log-probs either before the temperature or after top-k and top-p, and draws a seeded request's numbers with
a kernel of its own. So its sampler is replaced, and vLLM's interface for logits processors tells which request is in
which row. The same seeds give the same tokens as the native engine, but for rounding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from vllm.v1.outputs import LogprobsTensors, SamplerOutput
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor, MoveDirectionality
from vllm.v1.sample.sampler import Sampler

from laurel.rollout.native.sampling import sample, signed, uniforms
from laurel.types import SamplingParams

EXTRA = "laurel"
"""Key of a request's seed and settings in the ``extra_args`` of vLLM's own sampling parameters."""


@dataclass(frozen=True)
class Row:
    """A request in a row of the batch. ``tokens`` is vLLM's own list of what was sampled, which grows."""

    sampling: SamplingParams
    seed: int
    tokens: list[int]


def extra_args(sampling: SamplingParams, seed: int) -> dict[str, Any]:
    """What travels to the sampler with a request, of plain values."""
    settings = {"temperature": sampling.temperature, "top_p": sampling.top_p, "top_k": sampling.top_k}
    return {EXTRA: {"seed": signed(seed), "max_tokens": sampling.max_tokens, **settings}}


class Rows(LogitsProcessor):
    """Changes no logits: it follows which request lies in which row of the batch."""

    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool):
        self.rows: dict[int, Row] = {}

    def is_argmax_invariant(self) -> bool:
        return True

    def apply(self, logits: Tensor) -> Tensor:
        return logits

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        if batch_update is None:
            return
        for index in batch_update.removed:
            self.rows.pop(index, None)
        for index, params, _, tokens in batch_update.added:
            self.rows[index] = _row(params, tokens)
        for source, target, direction in batch_update.moved:
            moved, other = self.rows.pop(source, None), self.rows.pop(target, None)
            if moved is not None:
                self.rows[target] = moved
            if other is not None and direction == MoveDirectionality.SWAP:
                self.rows[source] = other


def _row(params: Any, tokens: list[int]) -> Row:
    given = dict((params.extra_args or {})[EXTRA])
    seed = given.pop("seed")
    return Row(SamplingParams(**given), seed, tokens)


class SeededSampler(Sampler):
    """In the place of vLLM's sampler. Batches without requests of ours, such as those of a warm-up, go to vLLM's."""

    def forward(self, logits: Tensor, sampling_metadata: Any, *args: Any, **kwargs: Any) -> SamplerOutput:
        """(n, V) logits to a token and its log-prob for each row."""
        rows = _rows_of(sampling_metadata)
        if not rows:
            return super().forward(logits, sampling_metadata, *args, **kwargs)
        batch = [rows[i] for i in range(logits.shape[0])]
        numbers = torch.tensor([[row.seed, len(row.tokens)] for row in batch], dtype=torch.int64)
        numbers = numbers.to(logits.device, non_blocking=True)
        tokens, log_probs = sample(
            logits.float(), [row.sampling for row in batch], uniforms(numbers[:, 0], numbers[:, 1])
        )
        tokens = tokens.to(torch.int32)[:, None]
        ranks = torch.zeros_like(tokens[:, 0])  # which nobody asks for
        return SamplerOutput(
            sampled_token_ids=tokens, logprobs_tensors=LogprobsTensors(tokens, log_probs[:, None], ranks)
        )


def _rows_of(sampling_metadata: Any) -> dict[int, Row]:
    for processor in sampling_metadata.logitsprocs.argmax_invariant:
        if isinstance(processor, Rows):
            return processor.rows
    return {}


def install(runner: Any) -> None:
    """Replace the sampler of a vLLM model runner."""
    runner.sampler = SeededSampler(logprobs_mode="raw_logits")
    # vLLM would wait for every step's tokens, to fill them into the lists of which only the length is used
    runner.input_batch.logitsprocs_need_output_token_ids = False
