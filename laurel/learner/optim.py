"""AdamW on this rank's part of the parameters, with float32 masters, warm-up and clipping of the global norm."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from laurel.config.tree import Optim
from laurel.learner.dist import Ranks
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
    """

    def __init__(
        self, parameters: Iterable[tuple[str, nn.Parameter]], optim: Optim, *, total_updates: int, ranks: Ranks,
        copies: int = 1, offload: bool = False,
    ):  # fmt: skip
        self.optim, self.total_updates, self.ranks, self.copies = optim, total_updates, ranks, copies
        self.offload = offload and ranks.device.type != "cpu"
        self.updates = 0  # made or skipped: what the schedule counts
        self.skipped = 0
        self.skipped_in_a_row = 0
        self.parameters = {name: p for name, p in parameters if p.requires_grad}
        self.masters: dict[str, Tensor] = {}
        self.gradients: dict[str, Tensor] = {}  # float32 sums, for parameters that are not float32
        for name, parameter in self.parameters.items():
            part = local(parameter.detach())
            self.masters[name] = part if part.dtype == torch.float32 else part.float()
            if part.dtype != torch.float32:
                parameter.register_post_accumulate_grad_hook(self._collect(name))
        fused = all(master.device.type in ("cpu", "cuda") for master in self.masters.values())
        self.adam = torch.optim.AdamW(
            list(self.masters.values()), lr=optim.lr, betas=optim.betas, weight_decay=optim.weight_decay, fused=fused
        )
        for master in self.masters.values():
            self.adam.state[master] = {
                "step": torch.zeros((), dtype=torch.float32, device=master.device),
                "exp_avg": torch.zeros_like(master),
                "exp_avg_sq": torch.zeros_like(master),
            }
        self._to_cpu()

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
        for name, parameter in self.parameters.items():
            gradient = self.gradients.get(name)
            if gradient is None and parameter.grad is not None:
                gradient = local(parameter.grad)
            self.masters[name].grad = gradient
        norm = self._norm()
        rate = learning_rate(self.optim, self.updates, self.total_updates)
        self.updates += 1
        if math.isfinite(norm):
            self.skipped_in_a_row = 0
            self._apply(norm, rate)
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

    def _apply(self, norm: float, rate: float) -> None:
        if norm > self.optim.clip_grad:
            gradients = [m.grad for m in self.masters.values() if m.grad is not None]
            torch._foreach_mul_(gradients, self.optim.clip_grad / (norm + 1e-6))
        self.adam.param_groups[0]["lr"] = rate
        self._to_device()
        self.adam.step()
        self._to_cpu()
        with torch.no_grad():
            for name, parameter in self.parameters.items():
                if parameter.dtype != torch.float32:
                    local(parameter).copy_(self.masters[name])

    def _norm(self) -> float:
        """L2 norm of the whole gradient. Summed in float64 so that it does not depend on how it is sharded."""
        gradients = [m.grad for m in self.masters.values() if m.grad is not None and m.grad.numel()]
        total = torch.zeros((), dtype=torch.float64)
        if gradients:
            norms = torch.stack([norm.double() for norm in torch._foreach_norm(gradients)])
            total = norms.square().sum().cpu()
        return math.sqrt(self.ranks.sum({"square": float(total)})["square"] / self.copies)

    def forget(self) -> None:
        """Drop gradients that were added up."""
        self.gradients.clear()
        for name, parameter in self.parameters.items():
            parameter.grad = None
            self.masters[name].grad = None

    def _to_cpu(self) -> None:
        if self.offload:
            self._move_moments("cpu")

    def _to_device(self) -> None:
        if self.offload:
            self._move_moments(None)

    def _move_moments(self, device: str | None) -> None:
        """None is where each master is: on the CPU too if parameters are offloaded as well."""
        for master, state in self.adam.state.items():
            for name in _MOMENTS:
                state[name] = state[name].to(device or master.device)

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
