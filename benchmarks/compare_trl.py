"""The losses of TRL and ours side by side, on the same random numbers: value, and gradient by the log-probabilities.

For development only; Laurel does not need TRL. TRL's own ``_compute_loss`` runs, on a stand-in for its trainer that
hands out given log-probabilities instead of a model's. Batches are ragged, with tool tokens and numbers that are far
off where nothing was sampled; everything is float64. TRL is installed apart from Laurel::

    DIR=$(mktemp -d); pip install --target $DIR --no-deps trl==1.16.0 accelerate; export TRL_EXPERIMENTAL_SILENCE=1
    PYTHONPATH=$DIR:. python benchmarks/compare_trl.py | tee docs/benchmarks/trl_losses.log
"""

from __future__ import annotations

import argparse
import platform
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any

import accelerate
import numpy
import torch
import transformers
import trl
from torch import Tensor
from trl.experimental.gmpo.gmpo_trainer import GMPOTrainer
from trl.trainer.grpo_trainer import GRPOTrainer

from laurel.algos import policy_loss
from laurel.algos.losses import ActorLoss

ROWS, LONGEST = 16, 40
LENGTH = 48.0  # max_completion_length, our loss_scale_factor
AGREES = 1e-9


@dataclass(frozen=True)
class Case:
    """What TRL is told, and the loss of ours that it should equal. ``more`` are further settings of ActorLoss."""

    name: str
    trl: dict[str, Any]
    loss: Callable[..., Any]
    mode: str
    more: dict[str, Any] = field(default_factory=dict)
    trainer: type = GRPOTrainer
    weighted: bool = False


PPO = partial(policy_loss.vanilla, clip_low=0.2, clip_high=0.28, clip_c=1e9)
DUAL = partial(policy_loss.vanilla, clip_low=0.2, clip_high=0.28, clip_c=3.0)
RANGE = {"epsilon_low": 0.2, "epsilon_high": 0.28}
MEAN = "seq-mean-token-mean"
CASES = (
    Case("grpo", {"loss_type": "grpo", **RANGE}, PPO, MEAN),
    Case("grpo, delta 3", {"loss_type": "grpo", "delta": 3.0, **RANGE}, DUAL, MEAN),
    Case(
        "grpo, beta 0.1",
        {"loss_type": "grpo", "beta": 0.1, **RANGE},
        PPO,
        MEAN,
        {"use_kl_loss": True, "kl_loss_coef": 0.1, "kl_loss_type": "low_var_kl"},
    ),
    Case("grpo, importance sampling", {"loss_type": "grpo", **RANGE}, PPO, MEAN, weighted=True),
    Case("bnpo", {"loss_type": "bnpo", **RANGE}, PPO, "token-mean"),
    Case(
        "bnpo, entropy bonus",
        {"loss_type": "bnpo", "entropy": 0.01, **RANGE},
        PPO,
        "token-mean",
        {"entropy_coeff": 0.01},
    ),
    Case("dapo", {"loss_type": "dapo", **RANGE}, PPO, "token-mean"),
    Case("dapo, importance sampling", {"loss_type": "dapo", **RANGE}, PPO, "token-mean", weighted=True),
    Case("dr_grpo", {"loss_type": "dr_grpo", **RANGE}, PPO, "seq-mean-token-sum-norm"),
    Case(
        "gspo",
        {"loss_type": "grpo", "level": "sequence", "epsilon_low": 0.1, "epsilon_high": 0.2},
        partial(policy_loss.gspo, clip_low=0.1, clip_high=0.2),
        MEAN,
    ),
    Case(
        "luspo",
        {"loss_type": "luspo", "level": "sequence", "epsilon_low": 0.1, "epsilon_high": 0.2},
        partial(policy_loss.gspo, clip_low=0.1, clip_high=0.2),
        "seq-mean-token-sum",
    ),
    Case(
        "cispo",
        {"loss_type": "cispo", "epsilon_low": 0.2, "epsilon_high": 2.0},
        partial(policy_loss.cispo, clip_low=1.0, clip_high=1.0),
        "token-mean",
    ),
    Case(
        "sapo",
        {"loss_type": "sapo", "tau_pos": 1.0, "tau_neg": 1.05, **RANGE},
        partial(policy_loss.sapo, tau_pos=1.0, tau_neg=1.05),
        MEAN,
    ),
    Case(
        "gmpo",
        {"loss_type": "grpo", "epsilon_low": 0.4, "epsilon_high": 0.4},
        partial(policy_loss.geo_mean, clip_low=0.4, clip_high=0.4),
        MEAN,
        trainer=GMPOTrainer,
    ),
)


@dataclass(frozen=True)
class Batch:
    """Padded tensors (B, T); ``mask`` is 1 at sampled tokens, ``completion`` also at tool tokens; advantages (B,)."""

    log_probs: Tensor
    old: Tensor
    ref: Tensor
    entropy: Tensor
    weights: Tensor
    advantages: Tensor
    completion: Tensor
    mask: Tensor


def random_batch(seed: int) -> Batch:
    generator = torch.Generator().manual_seed(seed)

    def noise() -> Tensor:
        return torch.randn(ROWS, LONGEST, generator=generator, dtype=torch.float64)

    lengths = torch.randint(2, LONGEST + 1, (ROWS, 1), generator=generator)
    completion = torch.arange(LONGEST) < lengths
    sampled = completion & (torch.rand(ROWS, LONGEST, generator=generator) > 0.2)
    sampled[:, 0] = True
    log_probs = -noise().abs() - 0.05
    batch = Batch(
        log_probs,
        log_probs + 0.8 * noise(),
        log_probs + 0.3 * noise(),
        noise().abs(),
        (0.3 * noise()).exp().clamp(max=2.0),
        torch.randn(ROWS, generator=generator, dtype=torch.float64),
        completion,
        sampled,
    )
    for tensor in (batch.old, batch.ref):
        tensor[~sampled] = -3.0  # far from log_probs there
    return batch


def of_trl(case: Case, batch: Batch) -> tuple[float, Tensor]:
    """TRL's loss and its gradient."""
    leaf = batch.log_probs.clone().requires_grad_()
    told = case.trl
    trainer = SimpleNamespace(
        _get_per_token_logps_and_entropies=lambda *args, **kwargs: (leaf, batch.entropy, None),
        model=SimpleNamespace(training=True),
        accelerator=SimpleNamespace(
            num_processes=1, reduce=lambda x, reduction: x, gather=lambda x: x, sync_gradients=False
        ),
        args=SimpleNamespace(
            delta=told.get("delta"),
            use_bias_correction_kl=False,
            sapo_temperature_pos=told.get("tau_pos"),
            sapo_temperature_neg=told.get("tau_neg"),
            steps_per_generation=1,
        ),
        loss_type=told["loss_type"],
        importance_sampling_level=told.get("level", "token"),
        epsilon_low=told["epsilon_low"],
        epsilon_high=told["epsilon_high"],
        beta=told.get("beta", 0.0),
        entropy_coef=told.get("entropy", 0.0),
        _entropy_bonus_enabled="entropy" in told,
        use_adaptive_entropy=False,
        top_entropy_quantile=1.0,
        off_policy_mask_threshold=None,
        use_vllm=case.weighted,
        vllm_importance_sampling_correction=case.weighted,
        current_gradient_accumulation_steps=1,
        max_completion_length=LENGTH,
        aux_loss_enabled=False,
        _metrics=defaultdict(lambda: defaultdict(list)),
    )
    ids = torch.zeros(ROWS, LONGEST, dtype=torch.int64)
    inputs = {
        "prompt_ids": ids[:, :1],
        "prompt_mask": torch.ones(ROWS, 1),
        "completion_ids": ids,
        "completion_mask": batch.completion.double(),
        "tool_mask": batch.mask.double(),
        "advantages": batch.advantages,
        "old_per_token_logps": batch.old,
        "ref_per_token_logps": batch.ref,
        "importance_sampling_ratio": batch.weights,
        "num_items_in_batch": batch.mask.sum(),
    }
    loss = case.trainer._compute_loss(trainer, None, inputs)
    loss.backward()
    assert leaf.grad is not None
    return loss.item(), leaf.grad


def of_ours(case: Case, batch: Batch) -> tuple[float, Tensor]:
    """Our loss and its gradient, on the packed tokens of the same rows."""
    where = batch.completion
    leaf = batch.log_probs.clone().requires_grad_()
    rows = torch.arange(ROWS)[:, None].expand(ROWS, LONGEST)[where]
    mask = batch.mask[where]
    loss = ActorLoss(case.loss, case.mode, LENGTH, **case.more)
    value, _ = loss(
        log_probs=leaf[where],
        old_log_probs=batch.old[where],
        ref_log_probs=batch.ref[where],
        entropy=batch.entropy[where],
        advantages=batch.advantages[rows],
        mask=mask,
        row_of_token=rows,
        weight=torch.ones(ROWS, dtype=torch.float64),
        token_count=float(mask.sum()),
        row_count=float(ROWS),
        rollout_is_weights=batch.weights[where] if case.weighted else None,
    )
    value.backward()
    assert leaf.grad is not None
    return value.item(), leaf.grad


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20, help="random batches per loss")
    seeds = parser.parse_args().seeds
    versions = {"trl": trl, "transformers": transformers, "accelerate": accelerate, "torch": torch, "numpy": numpy}
    print(f"python {platform.python_version()}, " + ", ".join(f"{k} {v.__version__}" for k, v in versions.items()))
    print(f"{seeds} batches of {ROWS} rows of 2 to {LONGEST} tokens, a fifth of them tool tokens; float64\n")
    form = "{:<26} {:<32} {:>12} {:>12} {:>10} {:>10} {:>9}  {}"
    print(form.format("TRL", "ours", "TRL's loss", "our loss", "|loss gap|", "|grad gap|", "|grad|", "agrees"))
    apart = []
    for case in CASES:
        value_gap = grad_gap = largest = 0.0
        for seed in range(seeds):
            batch = random_batch(seed)
            (theirs, their_grad), (ours, our_grad) = of_trl(case, batch), of_ours(case, batch)
            value_gap = max(value_gap, abs(theirs - ours))
            grad_gap = max(grad_gap, (their_grad - our_grad).abs().max().item())
            largest = max(largest, their_grad.abs().max().item())
        agrees = max(value_gap, grad_gap) < AGREES
        apart += [] if agrees else [case.name]
        name = case.loss.func.__name__ if isinstance(case.loss, partial) else case.loss.__name__
        row = (f"{theirs:.9f}", f"{ours:.9f}", f"{value_gap:.1e}", f"{grad_gap:.1e}", f"{largest:.1e}")
        print(form.format(case.name, f"{name} {case.mode}", *row, "yes" if agrees else "NO"))
    print("\nlosses are those of the last batch; gaps and gradients the largest over all batches")
    print("all agree" if not apart else f"apart: {', '.join(apart)}")


if __name__ == "__main__":
    main()
