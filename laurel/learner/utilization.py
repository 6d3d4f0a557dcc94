"""How much of the GPUs an update used: its FLOPs over what all ranks could have done in its time, and memory."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor

from laurel.batch.token_batch import TokenBatch
from laurel.learner.dist import Ranks
from laurel.models.load import backbone_of
from laurel.tracking.flops import mfu, peak_flops


class Utilization:
    """Counts the FLOPs of this rank's micro-batches during one update. Made before parameters are sharded.

    Counted is what was asked for: rows of weight 0 and what is recomputed to save memory are not.
    """

    def __init__(self, role: str, module: Any, device: torch.device):
        backbone = backbone_of(module)
        self.role, self.device = role, device
        # The embedding is looked up; tied to the head it multiplies there, and is counted there
        embedding = backbone.get_input_embeddings().weight.numel()
        self.backbone = sum(parameter.numel() for parameter in backbone.parameters()) - embedding
        head = module.value_head if role == "critic" else module.get_output_embeddings()
        self.head = sum(parameter.numel() for parameter in head.parameters())
        config = backbone.config
        self.layers = config.num_hidden_layers
        self.width = config.num_attention_heads * (
            getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        )
        self.peak = peak_flops(torch.cuda.get_device_name(device)) if device.type == "cuda" else None
        self._flops, self._start = 0.0, 0.0

    def start(self) -> None:
        self._flops, self._start = 0.0, time.perf_counter()

    def add(self, flops: float) -> None:
        """Micro-batches of so many FLOPs went through forward and backward."""
        self._flops += flops

    def flops(self, micro: TokenBatch, queries: Tensor) -> float:
        """Of a micro-batch on the CPU; ``queries`` (N,): how many tokens of each row are computed, at its end."""
        if self.peak is None:
            return 0.0
        counted = micro.weight > 0
        sampled = int((micro.response_mask & counted[micro.row_of_token]).sum())
        lengths, queries = micro.lengths[counted].double(), queries[counted].double()
        pairs = float((lengths.square() - (lengths - queries).square()).sum())
        attention = 6.0 * self.layers * self.width * pairs
        return attention + 6.0 * self.backbone * float(queries.sum()) + 6.0 * self.head * sampled

    def metrics(self, ranks: Ranks) -> dict[str, float]:
        """``perf/mfu/<role>`` since start(), where the peak is known, and the memory of the fullest GPU. Collective."""
        if self.device.type != "cuda":
            return {}
        memory = {
            "perf/max_memory_allocated_gb": self._fullest(torch.cuda.max_memory_allocated(self.device), ranks),
            "perf/max_memory_reserved_gb": self._fullest(torch.cuda.max_memory_reserved(self.device), ranks),
        }
        return memory | self._mfu(ranks)

    @staticmethod
    def _fullest(bytes_here: int, ranks: Ranks) -> float:
        """GiB of the rank with the most."""
        return ranks.max(float(bytes_here)) / 2**30

    def _mfu(self, ranks: Ranks) -> dict[str, float]:
        if self.peak is None:
            return {}
        seconds = time.perf_counter() - self._start
        flops = ranks.sum({"flops": self._flops})["flops"]
        return {f"perf/mfu/{self.role}": mfu(flops, seconds=seconds, ranks=ranks.world, peak=self.peak)}
