"""AdamW on this rank's part of the parameters, with float32 masters, warm-up and clipping of the global norm."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from laurel.config.tree import Optim
from laurel.learner.dist import Ranks
from laurel.learner.offload import Offloaded
from laurel.learner.parallelize import local
from laurel.types import LaurelError

_MOMENTS = ("exp_avg", "exp_avg_sq")
_MOST_SKIPPED_IN_A_ROW = 3


def learning_rate(optim: Optim, update: int, total: int) -> float:
    """The learning rate of update number ``update`` (from 0) of ``total``.

    Warm-up over w updates: ``lr * (update + 1) / w``, so that the first update already moves. Then constant, or a
    cosine that starts at lr after the warm-up and reaches ``lr * min_lr_ratio`` at the last update.

    Example, lr 1, w = 2, total 6, cosine to 0: 0.5, 1, 1, 0.75, 0.25, 0.
    """
    warmup = optim.lr_warmup_steps if optim.lr_warmup_steps >= 0 else int(optim.lr_warmup_steps_ratio * total)
    if update < warmup:
        return optim.lr * (update + 1) / warmup
    if optim.lr_scheduler_type == "constant":
        return optim.lr
    done = min(1.0, (update - warmup) / max(1, total - 1 - warmup))
    return optim.lr * (optim.min_lr_ratio + (1 - optim.min_lr_ratio) * 0.5 * (1 + math.cos(math.pi * done)))


class Step(NamedTuple):
    """What one update did: gradient norm before clipping, learning rate, and whether it was skipped."""

    grad_norm: float
    learning_rate: float
    skipped: bool


class Optimizer:
    """Updates a module's parameters in place.

    A float32 parameter is its own master. For a bfloat16 one the master is a float32 copy, gradients are added up in
    float32 over micro-batches as each backward ends, and after the update the master is copied into the parameter's
    storage. Sharded parameters are updated shard by shard: every rank steps on its own part.

    ``copies`` is how many ranks hold the same shard (HSDP's replicas), by which sums over all ranks are divided.
    ``offload``: moments, and masters that are no parameters, lie in CPU memory but for the part that is stepped on.
    """

    def __init__(
        self, parameters: Iterable[tuple[str, nn.Parameter]], optim: Optim, *, total_updates: int, ranks: Ranks,
        copies: int = 1, offload: bool = False,
    ):  # fmt: skip
        self.optim, self.total_updates, self.ranks, self.copies = optim, total_updates, ranks, copies
        self.updates = 0  # made or skipped: what the schedule counts
        self.skipped = 0
        self.skipped_in_a_row = 0
        self.parameters = {name: p for name, p in parameters if p.requires_grad}
        self.masters: dict[str, Tensor] = {}
        self.gradients: dict[str, Tensor] = {}  # float32 sums, for parameters that are not float32
        self.offloaded = self._offloaded() if offload and ranks.device.type != "cpu" else None
        moments: dict[str, list[Tensor]] = {}
        for name, parameter in self.parameters.items():
            part = local(parameter.detach())
            self.masters[name], moments[name] = self._state(name, part)
            if part.dtype != torch.float32:
                parameter.register_post_accumulate_grad_hook(self._collect(name))
        fused = all(master.device.type in ("cpu", "cuda") for master in self.masters.values())
        self.adam = torch.optim.AdamW(
            list(self.masters.values()), lr=optim.lr, betas=optim.betas, weight_decay=optim.weight_decay, fused=fused
        )
        for name, master in self.masters.items():
            step = torch.zeros((), dtype=torch.float32, device=local(self.parameters[name]).device)
            self.adam.state[master] = {"step": step, **dict(zip(_MOMENTS, moments[name], strict=True))}

    def _state(self, name: str, part: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Master and moments. A float32 part of the parameter is its own master."""
        if self.offloaded is None:
            return part.float(), [torch.zeros_like(part, dtype=torch.float32) for _ in _MOMENTS]
        *own, first, second = self.offloaded.tensors[name]
        return own[0].copy_(part) if own else part, [first, second]

    def _offloaded(self) -> Offloaded:
        """Room for moments, and for masters that are no parameters."""
        parts = {name: local(parameter.detach()) for name, parameter in self.parameters.items()}
        shapes = {name: [part.shape] * (2 if part.dtype == torch.float32 else 3) for name, part in parts.items()}
        return Offloaded(shapes, next(iter(parts.values())).device)

    def _collect(self, name: str) -> Callable[[nn.Parameter], None]:
        def add(parameter: nn.Parameter) -> None:
            assert parameter.grad is not None
            gradient = local(parameter.grad)
            if name in self.gradients:
                self.gradients[name].add_(gradient)
            else:
                self.gradients[name] = gradient.float()
            parameter.grad = None

        return add

    def step(self) -> Step:
        """Clip, update, forget the gradients. The result is the same on every rank.

        A gradient that is not finite changes nothing and is counted; after three in a row LaurelError is raised.
        """
        gradients = dict(self.gradients)
        for name, parameter in self.parameters.items():
            if name not in gradients and parameter.grad is not None:
                gradients[name] = local(parameter.grad)
        norm = self._norm(list(gradients.values()))
        rate = learning_rate(self.optim, self.updates, self.total_updates)
        self.updates += 1
        if math.isfinite(norm):
            self.skipped_in_a_row = 0
            self._apply(gradients, norm, rate)
        else:
            self.skipped += 1
            self.skipped_in_a_row += 1
        self.forget()
        if self.skipped_in_a_row >= _MOST_SKIPPED_IN_A_ROW:
            raise LaurelError(
                f"the gradient norm was {norm} in {self.skipped_in_a_row} updates in a row (the last is update "
                f"{self.updates}); lower the learning rate, or look for infinite rewards or advantages"
            )
        return Step(norm, rate, not math.isfinite(norm))

    def _apply(self, gradients: dict[str, Tensor], norm: float, rate: float) -> None:
        if norm > self.optim.clip_grad:
            torch._foreach_mul_(list(gradients.values()), self.optim.clip_grad / (norm + 1e-6))
        (settings,) = self.adam.param_groups
        settings["lr"] = rate
        for names in self.offloaded.parts() if self.offloaded else (tuple(self.masters),):
            settings["params"] = [self.masters[name] for name in names]
            for name in names:
                self.masters[name].grad = gradients.get(name)
            self.adam.step()
            with torch.no_grad():
                for name in names:
                    self.masters[name].grad = None
                    if self.parameters[name].dtype != torch.float32:
                        local(self.parameters[name]).copy_(self.masters[name])
        settings["params"] = list(self.masters.values())

    def _norm(self, gradients: list[Tensor]) -> float:
        """L2 norm of the whole gradient. Summed in float64 so that it does not depend on how it is sharded."""
        gradients = [gradient for gradient in gradients if gradient.numel()]
        total = torch.zeros((), dtype=torch.float64)
        if gradients:
            norms = torch.stack([norm.double() for norm in torch._foreach_norm(gradients)])
            total = norms.square().sum().cpu()
        return math.sqrt(self.ranks.sum({"square": float(total)})["square"] / self.copies)

    def forget(self) -> None:
        """Drop gradients that were added up."""
        self.gradients.clear()
        for parameter in self.parameters.values():
            parameter.grad = None

    def tensors(self) -> dict[str, Tensor]:
        """What a checkpoint keeps, this rank's parts: ``param/NAME`` (the masters) and ``exp_avg/NAME``,
        ``exp_avg_sq/NAME``. Filling them and calling ``loaded`` restores the optimizer.
        """
        found = {f"param/{name}": master for name, master in self.masters.items()}
        for moment in _MOMENTS:
            found |= {f"{moment}/{name}": self.adam.state[master][moment] for name, master in self.masters.items()}
        return found

    def counts(self) -> dict[str, int]:
        steps = {int(self.adam.state[master]["step"]) for master in self.masters.values()}
        if len(steps) != 1:
            raise ValueError(f"parameters are at different AdamW steps: {sorted(steps)}")
        return {
            "updates": self.updates,
            "adam_step": steps.pop(),
            "skipped": self.skipped,
            "skipped_in_a_row": self.skipped_in_a_row,
        }

    def loaded(self, counts: dict[str, int]) -> None:
        """Take over counts after ``tensors()`` were filled, and bring bfloat16 parameters in line with the masters."""
        self.updates, self.skipped = counts["updates"], counts["skipped"]
        self.skipped_in_a_row = counts["skipped_in_a_row"]
        for master in self.masters.values():
            self.adam.state[master]["step"].fill_(counts["adam_step"])
        with torch.no_grad():
            for name, parameter in self.parameters.items():
                if parameter.dtype != torch.float32:
                    local(parameter).copy_(self.masters[name])
