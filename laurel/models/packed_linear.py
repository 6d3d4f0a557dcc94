"""Linear layers on a CPU with weights laid out once for oneDNN's kernels.

A plain product lays the weight out anew each time, which for the few rows of a decoding step takes about as long as the
product itself: with weights laid out before, 32 rows are 1.5 and a vocabulary head 2 times as fast. It costs a second
copy of the weights while it is in use and about 0.7 s per GB and core to make, so it pays for a rollout, not for one
forward.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn

_ROWS = 64  # the batch that the layout is chosen for; measured to serve 1 to 2048 rows as well


def _layers(module: nn.Module) -> list[nn.Linear]:
    """Plain fp32 linear layers on a CPU; a subclass may do something else with its weight."""
    return [
        layer
        for layer in module.modules()
        if type(layer) is nn.Linear
        and type(layer.weight) is nn.Parameter
        and layer.weight.device.type == "cpu"
        and layer.weight.dtype == torch.float32
    ]


class PackedLinears:
    """The packed weights of one module. They are copies: ``forget`` them when the module's weights change."""

    def __init__(self, module: nn.Module):
        self._layers = _layers(module) if torch.backends.mkldnn.is_available() else []
        self._packed: list[Tensor] = []
        self._made_of: list[tuple[int, int]] = []

    def pack(self) -> None:
        """Pack what is not packed, or was packed from other values: an in-place update raises a version count."""
        made_of = [(layer.weight.data_ptr(), layer.weight._version) for layer in self._layers]
        if made_of != self._made_of:
            self._packed = []  # the old copies go before the new ones come
            self._packed = [_reorder(layer.weight) for layer in self._layers]
            self._made_of = made_of

    @property
    def ready(self) -> bool:
        """Packed from the weights as they are."""
        return bool(self._packed) and self._made_of == [
            (layer.weight.data_ptr(), layer.weight._version) for layer in self._layers
        ]

    def forget(self) -> None:
        """Give the memory back."""
        self._packed, self._made_of = [], []

    @contextmanager
    def used(self) -> Iterator[None]:
        """Within it the module's linear layers multiply by the packed weights, without gradients."""
        if not self.ready:
            yield
            return
        for layer, packed in zip(self._layers, self._packed, strict=True):
            layer.forward = partial(_forward, packed, layer.bias)  # type: ignore[method-assign]
        try:
            yield
        finally:
            for layer in self._layers:
                del layer.forward


def _reorder(weight: Tensor) -> Tensor:
    with torch.inference_mode(False), torch.no_grad():
        return torch.ops.mkldnn._reorder_linear_weight(weight.detach(), _ROWS)


def _forward(packed: Tensor, bias: Tensor | None, input: Tensor) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise(input, packed, bias, "none", [], "")
