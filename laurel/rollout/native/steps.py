"""Decoding steps of many slots on a device: captured as CUDA graphs on a GPU, called as they are elsewhere."""

from __future__ import annotations

from bisect import bisect_left

import torch
from torch import Tensor

from laurel.models.decoder import Decoder
from laurel.models.kernels.paged_attention import Pages, paged_attention, splits_for
from laurel.models.paged import PagedCache
from laurel.rollout.native.draw import draw, inputs
from laurel.rollout.native.graphs import Graphs
from laurel.rollout.native.state import SlotState

_SIZES = (8, 16, 32, 48, 64, 96, 128, 160, 192, 224, 256, 320, 384, 448, 512, 640, 768, 896, 1024)


def sizes_up_to(slots: int) -> list[int]:
    """Batch sizes that graphs are captured for: dense enough that few rows are computed for nothing."""
    return [size for size in _SIZES if size < slots] + [slots]


class Steps:
    """One more token for the slots of ``rows``, whatever they are at the time."""

    def __init__(self, decoder: Decoder, cache: PagedCache, state: SlotState, *, slots: int, max_pages: int):
        self.decoder, self.cache, self.state, self.max_pages = decoder, cache, state, max_pages
        device = cache.data.device
        self._nobody = slots
        self.rows = torch.full((slots,), slots, dtype=torch.int32, device=device)
        self._sizes = sizes_up_to(slots)
        self._graphs = Graphs() if device.type == "cuda" else None
        self._processors = torch.cuda.get_device_properties(device).multi_processor_count if self._graphs else 1

    def set_rows(self, slots: Tensor) -> None:
        """The slots (n,) int32 that the next steps advance, on any device."""
        self.rows.fill_(self._nobody)
        self.rows[: slots.numel()].copy_(slots, non_blocking=True)

    def run(self, count: int, *, drawn: bool) -> Tensor:
        """One step of the first ``count`` rows. ``drawn``: the tokens are drawn too, and the answer means nothing; else
        the caller draws them from the logits (count, V) that are returned, before the next step."""
        if self._graphs is None:
            return self._step(count, drawn)
        size = self._sizes[bisect_left(self._sizes, count)]
        return self._graphs.run((size, drawn), lambda: self._step(size, drawn))[:count]

    def _step(self, rows: int, drawn: bool) -> Tensor:
        slots = self.rows[:rows]
        fed = inputs(self.state, slots)
        pages = Pages(slots, fed.lengths, self.state.table)
        planes = self.cache.planes
        splits = splits_for(rows, self.cache.shape.kv_heads, self.max_pages, self._processors)

        def attend(layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
            return paged_attention(query, *planes[layer], pages, scale=scale, splits=splits)

        hidden = self.decoder(fed.token, fed.position, fed.place, self.cache, attend)
        logits = self.decoder.logits(hidden)
        if drawn:
            draw(logits, slots, self.state)
            return slots  # so that the graphs of other sizes use the memory of these logits too
        return logits
