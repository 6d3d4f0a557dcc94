"""TokenBatch: many trajectories of different lengths as packed columns, without padding."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


def head_column(name: str) -> str:
    """The row column that holds one head of the reward function, float32 (N,). Example: ``score/format``."""
    return f"score/{name}"


class _Column:
    """Typed access to one column by name, so that a missing one says what fills it."""

    def __init__(self, filled_by: str):
        self.filled_by = filled_by

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, batch: TokenBatch | None, owner: type) -> Tensor:
        if batch is None:
            return self  # type: ignore[return-value]
        for columns in (batch.tokens, batch.rows):
            if self.name in columns:
                return columns[self.name]
        raise KeyError(f"this batch has no column {self.name!r}; it is filled by {self.filled_by}")


@dataclass(frozen=True, eq=False)
class TokenBatch:
    """N trajectories of T tokens in all: prompt tokens followed by response tokens, end to end.

    ``tokens`` maps a name to a tensor of shape (T,); ``rows`` maps a name to a tensor of shape (N,);
    ``cu_seqlens`` (N + 1,) int64 holds where each trajectory begins. Every per-token column is aligned to
    ``input_ids``: ``log_probs[t]`` is the log-probability of token t given those before it in its trajectory, and is
    meaningful only where ``response_mask`` is True.

    Example: trajectories (prompt 5 6, response 7) and (prompt 5, response 8 9)::

        input_ids     = [5, 6, 7, 5, 8, 9]
        position_ids  = [0, 1, 2, 0, 1, 2]
        response_mask = [F, F, T, F, T, T]
        cu_seqlens    = [0, 3, 6]
    """

    tokens: Mapping[str, Tensor]
    rows: Mapping[str, Tensor]
    cu_seqlens: Tensor

    input_ids = _Column("build_batch")  # int64 (T,)
    position_ids = _Column("build_batch")  # int64 (T,)
    response_mask = _Column("build_batch")  # bool (T,): True where the policy sampled the token
    rollout_log_probs = _Column("build_batch, if the engine reports them")  # float32 (T,)
    old_log_probs = _Column("the actor's log_probs")  # float32 (T,)
    ref_log_probs = _Column("the reference's log_probs")  # float32 (T,)
    values = _Column("the critic's values")  # float32 (T,)
    logit_grad_squares = _Column("the actor's logit_grad_squares")  # float32 (T,): |d log_probs / d logits|^2
    rewards = _Column("token_rewards")  # float32 (T,)
    advantages = _Column("the algorithm's advantages")  # float32 (T,)
    returns = _Column("the algorithm's advantages")  # float32 (T,)
    rollout_is_weights = _Column("the rollout correction, if it weighs")  # float32 (T,)
    chosen = _Column("the policy loss, if it singles tokens out")  # bool (T,)

    index = _Column("build_batch")  # int64 (N,): place in the batch as built; travels with the row
    group = _Column("build_batch")  # int64 (N,): trajectories of one prompt share it
    score = _Column("build_batch")  # float32 (N,): raw score of the reward function
    weight = _Column("build_batch")  # float32 (N,): 1, or 0 for a row that only pads
    greedy_scores = _Column("build_batch, if groups have a greedy baseline")  # float32 (N,): its raw score
    truncated = _Column("build_batch")  # bool (N,): ended by the length limit
    policy_version = _Column("build_batch")  # int64 (N,)

    def __post_init__(self) -> None:
        on_cpu = self.cu_seqlens.device.type == "cpu"
        token_count, row_count = int(self.cu_seqlens[-1]) if on_cpu else self.token_count, self.row_count
        for name, column in self.tokens.items():
            if column.shape != (token_count,):
                raise ValueError(f"token column {name!r} has shape {tuple(column.shape)}; needs ({token_count},)")
        for name, column in self.rows.items():
            if column.shape != (row_count,):
                raise ValueError(f"row column {name!r} has shape {tuple(column.shape)}; needs ({row_count},)")

    @property
    def row_count(self) -> int:
        return self.cu_seqlens.numel() - 1

    @property
    def token_count(self) -> int:
        # By a column's size where there is one: a number that lies on a GPU has to be waited for
        return next((column.numel() for column in self.tokens.values()), None) or int(self.cu_seqlens[-1])

    @property
    def lengths(self) -> Tensor:
        """(N,) int64: tokens of each trajectory, prompt included."""
        return self.cu_seqlens.diff()

    @property
    def row_of_token(self) -> Tensor:
        """(T,) int64: which row each token belongs to."""
        rows = torch.arange(self.row_count, device=self.cu_seqlens.device)
        return torch.repeat_interleave(rows, self.lengths, output_size=self.token_count)

    def has(self, name: str) -> bool:
        return name in self.tokens or name in self.rows

    def with_(self, **columns: Tensor | None) -> TokenBatch:
        """A batch with further or replaced columns. None leaves the batch as it is (a role that had nothing to say)."""
        tokens, rows = dict(self.tokens), dict(self.rows)
        for name, column in columns.items():
            if column is None:
                continue
            if column.shape == (self.token_count,) and name not in rows:
                tokens[name] = column
            elif column.shape == (self.row_count,):
                rows[name] = column
            else:
                raise ValueError(
                    f"column {name!r} has shape {tuple(column.shape)}; needs ({self.token_count},) for tokens "
                    f"or ({self.row_count},) for rows"
                )
        return TokenBatch(tokens, rows, self.cu_seqlens)

    def select(self, indices: Sequence[int] | Tensor) -> TokenBatch:
        """The rows named by ``indices``, in that order (a row may come twice)."""
        indices = torch.as_tensor(indices, dtype=torch.int64)
        lengths = self.lengths[indices]
        cu_seqlens = torch.zeros(indices.numel() + 1, dtype=torch.int64)
        torch.cumsum(lengths, 0, out=cu_seqlens[1:])
        starts = torch.repeat_interleave(self.cu_seqlens[:-1][indices] - cu_seqlens[:-1], lengths)
        where = starts + torch.arange(int(cu_seqlens[-1]))
        return TokenBatch(
            {name: column[where] for name, column in self.tokens.items()},
            {name: column[indices] for name, column in self.rows.items()},
            cu_seqlens,
        )

    def with_weight(self, weight: float) -> TokenBatch:
        """The same rows with one weight. Weight 0 makes rows that keep ranks in step and change no result."""
        return self.with_(weight=torch.full((self.row_count,), weight))

    def map(self, change: Callable[[Tensor], Tensor]) -> TokenBatch:
        """The batch with every tensor of it changed, such as moved to a device."""
        return TokenBatch(
            {name: change(column) for name, column in self.tokens.items()},
            {name: change(column) for name, column in self.rows.items()},
            change(self.cu_seqlens),
        )

    def to(self, device: torch.device | str) -> TokenBatch:
        return self.map(lambda tensor: tensor.to(device))

    @staticmethod
    def concatenate(batches: Sequence[TokenBatch]) -> TokenBatch:
        """One batch of the rows of all, in order. Every batch must have the same columns."""
        if not batches:
            raise ValueError("nothing to concatenate: no batches were given")
        first = batches[0]
        for other in batches[1:]:
            if other.tokens.keys() != first.tokens.keys() or other.rows.keys() != first.rows.keys():
                raise ValueError(
                    f"batches differ in columns: {sorted(first.tokens.keys() | first.rows.keys())} and "
                    f"{sorted(other.tokens.keys() | other.rows.keys())}"
                )
        lengths = torch.cat([batch.lengths for batch in batches])
        cu_seqlens = torch.zeros(lengths.numel() + 1, dtype=torch.int64)
        torch.cumsum(lengths, 0, out=cu_seqlens[1:])
        return TokenBatch(
            {name: torch.cat([batch.tokens[name] for batch in batches]) for name in first.tokens},
            {name: torch.cat([batch.rows[name] for batch in batches]) for name in first.rows},
            cu_seqlens,
        )
