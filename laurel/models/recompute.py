"""A layer's forward computed again in the backward pass instead of holding what it computed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint


def recomputed(layer: Any, forward: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """``forward``, which takes the place of the layer's own, with the checkpointing that the layer was switched to.

    Depending on its version transformers checkpoints in the forward that is replaced, or around it: the layer's own
    switch is turned off, so that it is done once.
    """
    if not getattr(layer, "gradient_checkpointing", False):
        return forward
    layer.gradient_checkpointing = False

    def again(hidden: Tensor, **kwargs: Any) -> Tensor:
        if not (layer.training and torch.is_grad_enabled()):
            return forward(hidden, **kwargs)
        # The fast layers draw no random numbers, so there is no state of a generator to bring back
        return checkpoint(forward, hidden, use_reentrant=False, preserve_rng_state=False, **kwargs)

    return again
