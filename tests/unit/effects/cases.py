"""What the effect tests share: hand-made batches, and stand-ins for what lies behind Ray."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from laurel.batch.token_batch import TokenBatch
from laurel.config.tree import Config
from laurel.trainer.build import build, prepare
from laurel.trainer.run import Run
from laurel.types import Completion, Request
from laurel.workers.group import Handle
from laurel.workers.saving import Rehearsal, probe_name

ACTOR, ROLLOUT, REF, CRITIC = (
    "actor_rollout_ref.actor",
    "actor_rollout_ref.rollout",
    "actor_rollout_ref.ref",
    "critic",
)
ROWS = 10  # of the training file
PPO = ("algorithm.adv_estimator=gae",)
GRPO = ("algorithm.adv_estimator=grpo", f"{ROLLOUT}.n=2")


class Ranks:
    """A WorkerGroup of one rank that computes nothing: it keeps what the clients send in ``sent`` (method, arguments),
    and answers with zeros where log-probabilities or values are asked for."""

    def __init__(self) -> None:
        self.world, self.sent = 1, []
        self.handles = (Handle(self, None),)

    def tell(self) -> None:
        """Nobody warns."""

    def run(self, what: str, call: Callable[[Any, int], Any]) -> list[Any]:
        return [call(self, 0)]

    def start(self, what: str, call: Callable[[Any, int], Any]) -> Any:
        answers = self.run(what, call)
        return SimpleNamespace(answers=lambda say: answers)

    def __getattr__(self, method: str) -> Any:
        def remote(*arguments: Any) -> Any:
            self.sent.append((method, arguments))
            if method in ("log_probs", "logit_grad_squares", "ref_log_probs", "values"):
                return [torch.zeros(micro.token_count) for micro in arguments[0]]
            if method == "rehearse":
                (arguments[1] / probe_name(0)).touch()
                return Rehearsal(0, "here", bytes=0, memory=2**40)
            return {}

        return SimpleNamespace(remote=remote)

    def methods(self) -> list[str]:
        return [method for method, _ in self.sent]


class Pool:
    """An EnginePool that keeps the requests it gets and answers "42" and the end of the turn."""

    def __init__(self, answer: Sequence[int]):
        self.answer, self.requests = tuple(answer), []

    async def generate(self, position: int, request: Request) -> Completion:
        self.requests.append(request)
        return Completion(request.id, self.answer, (-1.0,) * len(self.answer), "stop", policy_version=0)


def run_of(config: Config, ranks: Ranks | None = None) -> tuple[Run, Pool]:
    """The run that ``config`` builds, on ranks that compute nothing and engines that answer 42."""
    prepared = prepare(config)
    run = build(prepared, ranks or Ranks())
    pool = Pool([*prepared.tokenizer("42", add_special_tokens=False)["input_ids"], prepared.tokenizer.eos_token_id])
    rollouts = replace(run.roles.rollouts, pool=pool, wake=nullcontext)
    return replace(run, roles=replace(run.roles, rollouts=rollouts)), pool


def batch_of(lengths: Sequence[int], *, prompt: int = 2, groups: Sequence[int] | None = None, **tokens: Tensor):
    """Rows of ``lengths`` tokens, of which the first ``prompt`` are the prompt; random ids, further token columns."""
    count, rows = sum(lengths), len(lengths)
    positions = torch.cat([torch.arange(length) for length in lengths])
    return TokenBatch(
        {
            "input_ids": torch.randint(8, 60, (count,), generator=torch.Generator().manual_seed(0)),
            "position_ids": positions,
            "response_mask": positions >= prompt,
            **tokens,
        },
        {
            "index": torch.arange(rows),
            "group": torch.tensor(groups if groups is not None else range(rows)),
            "score": torch.arange(rows, dtype=torch.float32),
            "weight": torch.ones(rows),
            "truncated": torch.zeros(rows, dtype=torch.bool),
            "policy_version": torch.zeros(rows, dtype=torch.int64),
        },
        torch.tensor([0, *lengths]).cumsum(0),
    )


def noise(count: int, seed: int = 0) -> Tensor:
    return torch.randn(count, generator=torch.Generator().manual_seed(seed))


def write_rows(path: Path, questions: Sequence[str], **columns: Any) -> None:
    """A row per question, with what it is asked twice: as chat messages, and as text under ``question``."""
    rows = [
        {
            "data_source": "laurel/arithmetic",
            "other_source": "openai/gsm8k",
            "prompt": [{"role": "user", "content": question}],
            "question": question,
            "reward_model": {"style": "rule", "ground_truth": "42"},
            "extra_info": {"index": index},
            **columns,
        }
        for index, question in enumerate(questions)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
