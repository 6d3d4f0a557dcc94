"""From groups of trajectories to one TokenBatch."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import torch

from laurel.batch.token_batch import TokenBatch, head_column
from laurel.types import Group, LaurelError, Trajectory


def build_batch(groups: Sequence[Group], *, heads: Sequence[str] = ()) -> TokenBatch:
    """All trajectories of ``groups``, packed in order. Scores must be there.

    ``rollout_log_probs`` is present only if every sampled turn carries log-probabilities; at prompt and environment
    tokens it is 0. ``heads`` are numbers of the reward function (``score`` or others of its dict) that become row
    columns of their own, named by ``head_column``.

    What could not be scored stays as a row of weight 0, of which nothing is learned. So do the baseline's whole group
    if that was the greedy answer, and what is left alone of a group of several, since it has nothing to be compared
    with. Raises LaurelError if nothing is left.
    """
    rows = [(number, group, trajectory) for number, group in enumerate(groups) for trajectory in group.trajectories]
    if not rows:
        raise ValueError("no trajectories to train on: every group is empty")
    missing = [f"{group.prompt.index}/{t.sample}" for _, group, t in rows if t.score is None and t.unscored is None]
    if missing:
        raise ValueError(f"trajectories without a score (prompt/sample): {', '.join(missing[:8])}")
    weights = [weight for group in groups for weight in _weights(group)]
    if not any(weights):
        raise LaurelError(
            f"none of {len(rows)} trajectories can be learned from, since their scores, or those of all others of "
            "their prompts, failed; see the reasons above, or raise actor_rollout_ref.rollout.n"
        )

    ids: list[int] = []
    sampled: list[bool] = []
    log_probs: list[float] = []
    lengths: list[int] = []
    reported = all(turn.log_probs is not None for _, _, t in rows for turn in t.turns if turn.sampled)
    for _, group, trajectory in rows:
        prompt = group.prompt.input_ids
        ids += prompt
        sampled += [False] * len(prompt)
        log_probs += [0.0] * len(prompt)
        length = len(prompt)
        for turn in trajectory.turns:
            count = len(turn.token_ids)
            ids += turn.token_ids
            sampled += [turn.sampled] * count
            log_probs += turn.log_probs if turn.sampled and turn.log_probs is not None else [0.0] * count
            length += count
        lengths.append(length)

    tokens = {
        "input_ids": torch.tensor(ids, dtype=torch.int64),
        "position_ids": torch.tensor(list(chain.from_iterable(map(range, lengths))), dtype=torch.int64),
        "response_mask": torch.tensor(sampled, dtype=torch.bool),
    }
    if reported:
        tokens["rollout_log_probs"] = torch.tensor(log_probs, dtype=torch.float32)
    baselines = [group.baseline.score for _, group, _ in rows if group.baseline is not None]
    greedy = [0.0 if score is None else score.value for score in baselines]
    cu_seqlens = torch.zeros(len(rows) + 1, dtype=torch.int64)
    torch.cumsum(torch.tensor(lengths), 0, out=cu_seqlens[1:])
    return TokenBatch(
        tokens,
        {
            "index": torch.arange(len(rows)),
            "group": torch.tensor([number for number, _, _ in rows]),
            "score": torch.tensor([t.score.value if t.score else 0.0 for _, _, t in rows], dtype=torch.float32),
            "weight": torch.tensor(weights),
            "truncated": torch.tensor([t.finish_reason == "length" for _, _, t in rows]),
            "policy_version": torch.tensor([t.policy_version for _, _, t in rows]),
            **{head_column(name): _head(name, rows) for name in heads},
            **({"greedy_scores": torch.tensor(greedy, dtype=torch.float32)} if greedy else {}),
        },
        cu_seqlens,
    )


def _weights(group: Group) -> list[float]:
    """1 for each trajectory that something is learned from, else 0."""
    scored = [trajectory.score is not None for trajectory in group.trajectories]
    unjudged = group.baseline is not None and group.baseline.score is None
    if unjudged or (sum(scored) == 1 and len(scored) > 1):
        return [0.0] * len(scored)
    return [float(one) for one in scored]


def _head(name: str, rows: Sequence[tuple[int, Group, Trajectory]]) -> torch.Tensor:
    """(N,) float32: what the reward function said under ``name`` of each trajectory."""
    found = []
    for _, group, trajectory in rows:
        if trajectory.score is None:
            found.append(0.0)
            continue
        numbers = {"score": trajectory.score.value, **trajectory.score.extras}
        if name not in numbers:
            raise LaurelError(
                f"algorithm.gdpo_reward_keys names {name!r}, which the reward function did not return for row "
                f"{group.prompt.index}, sample {trajectory.sample}; it returned {', '.join(numbers)}"
            )
        found.append(numbers[name])
    return torch.tensor(found, dtype=torch.float32)
