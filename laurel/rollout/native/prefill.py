"""Prompts into a paged cache. On a GPU small batches of them run as CUDA graphs, padded to a few sizes: launching a
layer's kernels one by one takes longer than running them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from laurel.models.attention import Packing, attend_rows
from laurel.models.decoder import Decoder
from laurel.models.devices import moved
from laurel.models.paged import PAGE, PagedCache
from laurel.rollout.native.batch import Counters
from laurel.rollout.native.graphs import Graphs

_SIZES = (128, 256, 512, 1024, 2048)  # tokens
_ROWS = 32

Prompt = tuple[int, ...]


class Prefill:
    """Forward passes over whole prompts, in batches of about ``budget`` tokens."""

    def __init__(self, decoder: Decoder, cache: PagedCache, counters: Counters, budget: int):
        self.decoder, self.cache, self.counters, self.budget = decoder, cache, counters, budget
        self.device = cache.data.device
        self._graphs = Graphs() if self.device.type == "cuda" else None
        self._fed: dict[int, tuple[Tensor, Tensor, Tensor]] = {}

    def __call__(self, prompts: Sequence[Prompt], pages: Sequence[list[int]]) -> list[Tensor]:
        """Logits (1, V) after each prompt; its keys and values go into its ``pages``."""
        found: list[Tensor] = []
        start = 0
        while start < len(prompts):
            end, tokens = start, 0
            while end < len(prompts) and (end == start or tokens + len(prompts[end]) <= self.budget):
                tokens += len(prompts[end])
                end += 1
            logits = self._forward(prompts[start:end], pages[start:end])
            found += logits.split(1)
            self.counters.forwards += 1
            self.counters.prefill_tokens += tokens
            start = end
        return found

    def _forward(self, prompts: Sequence[Prompt], pages: Sequence[list[int]]) -> Tensor:
        """Logits (m, V) after each of m prompts."""
        lengths = torch.tensor([len(prompt) for prompt in prompts])
        starts = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
        positions = torch.arange(int(starts[-1])) - starts[:-1].repeat_interleave(lengths)
        table = torch.zeros(len(prompts), max(len(own) for own in pages), dtype=torch.int64)
        for number, own in enumerate(pages):
            table[number, : len(own)] = torch.tensor(own)
        row = torch.arange(len(prompts)).repeat_interleave(lengths)
        places = table[row, positions // PAGE] * PAGE + positions % PAGE
        fed = torch.stack([torch.tensor([token for prompt in prompts for token in prompt]), positions, places])
        size = next((size for size in _SIZES if size >= fed.shape[1]), None)
        if self._graphs is None or size is None or len(prompts) >= _ROWS:
            packing = Packing.of(starts, self.device)
            return self._run(moved(fed, self.device), packing, moved(starts[1:] - 1, self.device))
        return self._graph(self._graphs, fed, starts, size)[: len(prompts)].clone()

    def _graph(self, graphs: Graphs, fed: Tensor, starts: Tensor, size: int) -> Tensor:
        """Logits (_ROWS, V) of the rows of a batch padded to ``size`` tokens. What is padded is a row of its own and
        goes into page 0, which is nobody's."""
        if size not in self._fed:
            self._fed[size] = (
                torch.zeros(3, size, dtype=torch.int64, device=self.device),
                torch.zeros(_ROWS + 1, dtype=torch.int32, device=self.device),
                torch.zeros(_ROWS, dtype=torch.int64, device=self.device),
            )
        tokens, bounds, last = self._fed[size]
        padded = torch.zeros(3, size, dtype=torch.int64)
        padded[:, : fed.shape[1]] = fed
        rows = torch.full((_ROWS + 1,), size, dtype=torch.int32)
        rows[: starts.numel()] = starts.int()
        ends = torch.zeros(_ROWS, dtype=torch.int64)
        ends[: starts.numel() - 1] = starts[1:] - 1
        for there, here in ((tokens, padded), (bounds, rows), (last, ends)):
            there.copy_(here.pin_memory(), non_blocking=True)
        packing = Packing(bounds, size, bounds, size)
        return graphs.run(size, lambda: self._run(tokens, packing, last))

    def _run(self, fed: Tensor, packing: Packing, last: Tensor) -> Tensor:
        def attend(layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
            return attend_rows(query, key, value, packing, scale).flatten(1)

        hidden = self.decoder(fed[0], fed[1], fed[2], self.cache, attend)
        return self.decoder.logits(hidden[last])
