"""What the learner's tests share, and the program of the multi-rank tests: ``python learner_cases.py FOLDER``.

It runs two ranks, then four. Ranks are forked from one process that has imported everything and computed nothing,
which saves the seconds of import for each.
"""

from __future__ import annotations

import importlib
import os
import sys
import time
import traceback
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch.distributed.tensor import DTensor

from laurel.batch.pack import MiniBatch, rank_shares
from laurel.batch.token_batch import TokenBatch
from laurel.config.tree import Config
from laurel.learner.dist import ONE_RANK, Meeting, Ranks, join, leave
from laurel.learner.learner import PolicyLearner, ValueLearner
from laurel.learner.optim import Step
from laurel.weights.buckets import buckets

LENGTHS = (7, 20, 5, 31, 12, 30, 9)
PROMPTS = (3, 8, 2, 5, 6, 10, 1)
BUDGET = 40


def make_config(model: Path | str, *, lr: float = 1e-3, fsdp_size: int = -1, **actor: object) -> Config:
    optim = {"lr": lr, "lr_warmup_steps": 2, "weight_decay": 0.1, "clip_grad": 0.5}
    fsdp = {"fsdp_size": fsdp_size}
    return Config.model_validate(
        {
            "actor_rollout_ref": {
                "model": {"path": str(model)},
                "rollout": {"temperature": 0.7},
                "actor": {
                    "optim": optim,
                    "fsdp_config": fsdp,
                    "entropy_coeff": 0.01,
                    "use_kl_loss": True,
                    "kl_loss_coef": 0.1,
                    **actor,
                },
            },
            "critic": {"optim": optim, "fsdp_config": fsdp},
        }
    )


def make_batch(seed: int = 0) -> TokenBatch:
    """Seven rows of different lengths with every column that losses read; the last row has weight 0."""
    random = torch.Generator().manual_seed(seed)
    cu_seqlens = torch.tensor([0, *LENGTHS]).cumsum(0)
    tokens, rows = int(cu_seqlens[-1]), len(LENGTHS)

    def noise(scale: float) -> torch.Tensor:
        return torch.randn(tokens, generator=random) * scale

    return TokenBatch(
        {
            "input_ids": torch.randint(8, 60, (tokens,), generator=random),
            "position_ids": torch.cat([torch.arange(n) for n in LENGTHS]),
            "response_mask": torch.cat([torch.arange(n) >= p for n, p in zip(LENGTHS, PROMPTS, strict=True)]),
            "old_log_probs": noise(0.1) - 4.6,
            "ref_log_probs": noise(0.1) - 4.6,
            "advantages": noise(1.0),
            "values": noise(0.3),
            "returns": noise(1.0),
        },
        {
            "index": torch.arange(rows),
            "group": torch.arange(rows),
            "score": torch.ones(rows),
            "weight": torch.tensor([1.0] * (rows - 1) + [0.0]),
            "truncated": torch.zeros(rows, dtype=torch.bool),
            "policy_version": torch.zeros(rows, dtype=torch.int64),
        },
        cu_seqlens,
    )


def gradients(learner: PolicyLearner | ValueLearner, mini: MiniBatch) -> dict[str, torch.Tensor]:
    """The whole gradient of one update, without the update."""
    found: dict[str, torch.Tensor] = {}

    def catch() -> Step:
        for name, parameter in learner.module.named_parameters():
            grad = parameter.grad
            found[name] = (grad.full_tensor() if isinstance(grad, DTensor) else grad).clone()
            parameter.grad = None
        return Step(0.0, 0.0, False)

    assert learner.optimizer is not None
    step, learner.optimizer.step = learner.optimizer.step, catch
    learner.update([mini])
    learner.optimizer.step = step
    return found


def make_learners(model: Path, ranks: Ranks = ONE_RANK, fsdp_size: int = -1) -> tuple[PolicyLearner, ValueLearner]:
    config = make_config(model, fsdp_size=fsdp_size)
    actor = PolicyLearner("actor", config, ranks=ranks, total_updates=10)
    critic = ValueLearner(config, ranks=ranks, total_updates=10)
    with torch.no_grad():  # a head at 0 would send no gradient into the backbone
        critic.module.value_head.weight.fill_(0.1)
    return actor, critic


def run_case(model: Path, ranks: Ranks, fsdp_size: int = -1) -> tuple[dict[str, torch.Tensor], dict[str, float]]:
    """Gradients, then two updates of actor and critic: tensors and numbers that any number of ranks must agree on."""
    actor, critic = make_learners(model, ranks, fsdp_size)
    minis = [rank_shares(make_batch(seed), ranks.world, BUDGET)[ranks.rank] for seed in (0, 1)]
    tensors = {f"policy_grad/{name}": grad for name, grad in gradients(actor, minis[0]).items()}
    tensors |= {f"value_grad/{name}": grad for name, grad in gradients(critic, minis[0]).items()}
    metrics = actor.update(minis) | critic.update(minis)
    for prefix, learner in (("policy", actor), ("value", critic)):
        for bucket in buckets(learner.module, dtype=torch.float32, device=ranks.device, bucket_bytes=1 << 16):
            tensors |= {f"{prefix}/{name}": tensor.clone() for name, tensor in bucket.items()}
    for prefix, shown in (
        ("log_probs", actor.log_probs(minis[0].micro_batches)),
        ("values", critic.values(minis[0].micro_batches)),
    ):
        # 0 where nothing was sampled, so the sum over this rank's rows of weight 1 is a number to add up
        total = sum(float(x.sum()) for x, m in zip(shown, minis[0].micro_batches, strict=True) if m.weight.sum() > 0)
        metrics[f"sum/{prefix}"] = ranks.sum({prefix: total})[prefix]
    return tensors, metrics


def _meet(rank: int, world: int, folder: Path) -> Ranks:
    note = folder / f"address-{world}"
    meeting: Meeting | str
    if rank == 0:
        meeting = Meeting("127.0.0.1", world, 60)
        pending = folder / f"pending-{world}"
        pending.write_text(meeting.address)
        pending.rename(note)
    else:
        while not note.exists():
            time.sleep(0.05)
        meeting = note.read_text()
    return join(rank=rank, world=world, meeting=meeting, device="cpu", timeout_s=60)


def main(rank: int, world: int, folder: Path) -> None:
    torch.set_num_threads(1)
    ranks = _meet(rank, world, folder)
    model = folder / "model"
    for fsdp_size in (-1, 2) if world == 4 else (-1,):
        tensors, metrics = run_case(model, ranks, fsdp_size)
        if ranks.first:
            name = f"world{world}-{fsdp_size}"
            save_file({key: value.contiguous() for key, value in tensors.items()}, folder / f"{name}.safetensors")
        (folder / f"world{world}-{fsdp_size}-rank{rank}.txt").write_text(repr(metrics))
        # A checkpoint of fewer ranks, loaded here and written again by these ranks
        actor, critic = make_learners(model, ranks, fsdp_size)
        source = "from1" if world == 2 else "trained2"
        for learner in (actor, critic):
            learner.load(folder / source / learner.role)
            learner.save(folder / f"again{world}-{fsdp_size}" / learner.role)
        if world == 2:
            mini = rank_shares(make_batch(3), world, BUDGET)[rank]
            for learner in (actor, critic):
                learner.update([mini])
                learner.save(folder / "trained2" / learner.role)
    leave()


def fork_ranks(world: int, folder: Path) -> None:
    children = []
    for rank in range(world):
        child = os.fork()
        if child == 0:
            status = 1
            try:
                main(rank, world, folder)
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(status)
        children.append(child)
    statuses = [os.waitpid(child, 0)[1] for child in children]
    if any(statuses):
        sys.exit(f"{world} ranks ended with {statuses}")


if __name__ == "__main__":
    importlib.import_module("transformers.models.llama.modeling_llama")
    torch.set_num_threads(1)
    for ranks_of_world in (2, 4):
        fork_ranks(ranks_of_world, Path(sys.argv[1]))
