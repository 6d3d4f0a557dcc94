"""Every advantage estimator once more, slowly: float64, token by token and group by group, as its formula is read.

Each takes a batch and its settings and returns ``(advantages, returns)``, float64 of shape (T,). ``REFERENCES`` names
them as users do; ``batch_of`` makes batches that have everything which is easily got wrong.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import torch

from laurel.batch.token_batch import TokenBatch, head_column

HEADS = ("accuracy", "format", "length")


class Rows:
    """The counted tokens of each row as index lists, and its numbers as float64."""

    def __init__(self, batch: TokenBatch):
        self.batch = batch
        ends, mask = batch.cu_seqlens.tolist(), batch.response_mask.tolist()
        self.counted = [weight > 0 for weight in batch.weight.tolist()]
        self.tokens = [
            [t for t in range(start, end) if mask[t]] if counts else []
            for (start, end), counts in zip(pairwise(ends), self.counted, strict=True)
        ]
        self.group = batch.group.tolist()
        self.total = [sum(self.of_token("rewards")[t] for t in tokens) for tokens in self.tokens]

    def of_token(self, name: str) -> list[float]:
        return self.batch.tokens[name].double().tolist()

    def of_row(self, name: str) -> list[float]:
        return self.batch.rows[name].double().tolist()

    def peers(self, row: int) -> list[int]:
        """The counted rows of its group, itself included."""
        return [r for r, g in enumerate(self.group) if g == self.group[row] and self.counted[r]]

    def spread(self, per_row: list[float]) -> np.ndarray:
        found = np.zeros(self.batch.token_count)
        for row, tokens in enumerate(self.tokens):
            found[tokens] = per_row[row]
        return found

    def whitened(self, values: np.ndarray) -> np.ndarray:
        where = [t for tokens in self.tokens for t in tokens]
        found = np.zeros(self.batch.token_count)
        if len(where) > 1:
            kept = values[where]
            found[where] = (kept - kept.mean()) / np.sqrt(kept.var(ddof=1) + 1e-8)
        return found

    def rewards_to_go(self, gamma: float) -> np.ndarray:
        rewards, found = self.of_token("rewards"), np.zeros(self.batch.token_count)
        for tokens in self.tokens:
            following = 0.0
            for t in reversed(tokens):
                following = rewards[t] + gamma * following
                found[t] = following
        return found


def per_group(batch: TokenBatch, advantage) -> tuple[np.ndarray, np.ndarray]:
    """One number per counted row: ``advantage(total of the row, totals of its group, rows)``; R in a group of one."""
    rows = Rows(batch)
    found = [0.0] * batch.row_count
    for row in range(batch.row_count):
        peers = rows.peers(row)
        if rows.counted[row]:
            found[row] = rows.total[row] if len(peers) == 1 else advantage(row, peers, rows)
    spread = rows.spread(found)
    return spread, spread


def gae(batch: TokenBatch, *, gamma: float, lam: float) -> tuple[np.ndarray, np.ndarray]:
    rows = Rows(batch)
    rewards, values = rows.of_token("rewards"), rows.of_token("values")
    raw, returns = np.zeros(batch.token_count), np.zeros(batch.token_count)
    for tokens in rows.tokens:
        next_value = next_advantage = 0.0
        for t in reversed(tokens):
            delta = rewards[t] + gamma * next_value - values[t]
            next_advantage = delta + gamma * lam * next_advantage
            next_value = values[t]
            raw[t], returns[t] = next_advantage, next_advantage + values[t]
    return rows.whitened(raw), returns


def grpo(batch: TokenBatch, *, norm_by_std: bool = True) -> tuple[np.ndarray, np.ndarray]:
    return per_group(batch, lambda row, peers, rows: compared(rows.total, row, peers, norm_by_std))


def compared(values: list[float], row: int, peers: list[int], norm_by_std: bool) -> float:
    of_group = np.array([values[r] for r in peers])
    difference = values[row] - of_group.mean()
    return difference / (of_group.std(ddof=1) + 1e-6) if norm_by_std else difference


def rloo(batch: TokenBatch) -> tuple[np.ndarray, np.ndarray]:
    return per_group(
        batch, lambda row, peers, rows: rows.total[row] - np.mean([rows.total[r] for r in peers if r != row])
    )


def opo(batch: TokenBatch) -> tuple[np.ndarray, np.ndarray]:
    def advantage(row: int, peers: list[int], rows: Rows) -> float:
        lengths = [len(rows.tokens[r]) for r in peers]
        weighted = [length * rows.total[r] for length, r in zip(lengths, peers, strict=True)]
        return rows.total[row] - sum(weighted) / sum(lengths)

    return per_group(batch, advantage)


def gpg(batch: TokenBatch) -> tuple[np.ndarray, np.ndarray]:
    rows = Rows(batch)
    totals = [total for total, counts in zip(rows.total, rows.counted, strict=True) if counts]
    alpha = len(totals) / max(1, sum(total != 0 for total in totals))
    found = [0.0] * batch.row_count
    for row in range(batch.row_count):
        peers = rows.peers(row)
        mean = np.mean([rows.total[r] for r in peers]) if len(peers) > 1 else 0.0
        found[row] = alpha * (rows.total[row] - mean)
    return rows.spread(found), rows.spread(found)


def grpo_passk(batch: TokenBatch, *, norm_by_std: bool = True) -> tuple[np.ndarray, np.ndarray]:
    def advantage(row: int, peers: list[int], rows: Rows) -> float:
        others = [rows.total[r] for r in peers if r != row]
        if rows.total[row] <= max(others):
            return 0.0
        gain = rows.total[row] - max(others)
        return gain / (np.std([rows.total[r] for r in peers], ddof=1) + 1e-6) if norm_by_std else gain

    return per_group(batch, advantage)


def reinforce_plus_plus(batch: TokenBatch, *, gamma: float) -> tuple[np.ndarray, np.ndarray]:
    rows = Rows(batch)
    returns = rows.rewards_to_go(gamma)
    return rows.whitened(returns), returns


def reinforce_plus_plus_baseline(batch: TokenBatch) -> tuple[np.ndarray, np.ndarray]:
    centred, _ = per_group(batch, lambda row, peers, rows: rows.total[row] - np.mean([rows.total[r] for r in peers]))
    whitened = Rows(batch).whitened(centred)
    return whitened, whitened


def remax(batch: TokenBatch) -> tuple[np.ndarray, np.ndarray]:
    rows = Rows(batch)
    returns = rows.rewards_to_go(1.0)
    return returns - rows.spread(rows.of_row("greedy_scores")), returns


def gdpo(batch: TokenBatch, *, weights: dict[str, float], norm_by_std: bool = True) -> tuple[np.ndarray, np.ndarray]:
    rows = Rows(batch)
    found = [0.0] * batch.row_count
    for head, weight in weights.items():
        scores = rows.of_row(head_column(head))
        for row in range(batch.row_count):
            peers = rows.peers(row)
            if rows.counted[row]:
                alone = len(peers) == 1
                found[row] += weight * (scores[row] if alone else compared(scores, row, peers, norm_by_std))
    whitened = rows.whitened(rows.spread(found))
    return whitened, whitened


def optimal_token_baseline(batch: TokenBatch) -> tuple[np.ndarray, np.ndarray]:
    rows = Rows(batch)
    squares, returns = rows.of_token("logit_grad_squares"), rows.rewards_to_go(1.0)
    path = [np.cumsum([squares[t] for t in tokens]) for tokens in rows.tokens]
    advantages = np.zeros(batch.token_count)
    for row, tokens in enumerate(rows.tokens):
        for place, t in enumerate(tokens):
            reach = [r for r in rows.peers(row) if len(rows.tokens[r]) > place]
            baseline = 0.0
            if len(reach) > 1:
                weighted = sum(returns[rows.tokens[r][place]] * path[r][place] for r in reach)
                baseline = weighted / (sum(path[r][place] for r in reach) + 1e-8)
            advantages[t] = returns[t] - baseline
    return advantages, returns


REFERENCES = {
    "gae": gae,
    "grpo": grpo,
    "rloo": rloo,
    "reinforce_plus_plus": reinforce_plus_plus,
    "reinforce_plus_plus_baseline": reinforce_plus_plus_baseline,
    "remax": remax,
    "opo": opo,
    "gpg": gpg,
    "grpo_passk": grpo_passk,
    "gdpo": gdpo,
    "optimal_token_baseline": optimal_token_baseline,
}


def batch_of(seed: int, row_count: int = 24) -> TokenBatch:
    """Ragged rows in scattered groups: groups of one, an all-equal group, a tie for the best, rows of weight 0 that
    hold NaN, tool answers inside and after the response, truncated rows, a row without a sampled token, long rows."""
    rng = np.random.default_rng(seed)
    prompts = rng.integers(1, 6, row_count)
    responses = rng.integers(1, 90, row_count)
    masks = [rng.random(length) > 0.3 for length in responses]
    for row, mask in enumerate(masks):
        mask[0] = True
        if row % 3 == 0:
            mask[-1] = True  # else the row may end in a tool answer
    masks[5][:] = False  # a response of environment tokens alone
    lengths = prompts + responses
    response_mask = np.concatenate(
        [np.concatenate([np.zeros(p, dtype=bool), m]) for p, m in zip(prompts, masks, strict=True)]
    )
    group = rng.integers(0, 5, row_count)
    group[3], group[11] = 90, 91  # groups of one
    group[[2, 9, 14]] = 92  # all equal
    group[[6, 13, 20]] = 93  # two best
    weight = np.ones(row_count, dtype=np.float32)
    weight[[4, 17]] = 0.0

    count = int(lengths.sum())
    starts = lengths.cumsum() - lengths
    rewards = np.where(rng.random(count) < 0.4, 0.0, rng.standard_normal(count) * 0.1).astype(np.float32)
    row_of_token = np.repeat(np.arange(row_count), lengths)
    for rows, scores in (((2, 9, 14), (0.1, 0.1, 0.1)), ((6, 13, 20), (0.25, 1.5, 1.5))):
        for row, score in zip(rows, scores, strict=True):
            rewards[row_of_token == row] = 0.0
            rewards[starts[row] + prompts[row] + np.flatnonzero(masks[row])[-1]] = score
    tokens = {
        "rewards": rewards,
        "values": rng.standard_normal(count).astype(np.float32),
        "logit_grad_squares": rng.uniform(0.0, 2.0, count).astype(np.float32),
    }
    unread = ~response_mask | (weight[row_of_token] == 0)
    for column in tokens.values():
        column[unread] = rng.choice([np.nan, np.inf, -np.inf, 7.0], unread.sum())
    rows = {
        "greedy_scores": rng.standard_normal(row_count).astype(np.float32),
        **{
            head_column(name): (rng.integers(0, 3, row_count) * 10.0**k).astype(np.float32)
            for k, name in enumerate(HEADS)
        },
    }
    for column in rows.values():
        column[weight == 0] = np.nan
    return TokenBatch(
        {
            "input_ids": torch.zeros(count, dtype=torch.int64),
            "response_mask": torch.from_numpy(response_mask),
            **{name: torch.from_numpy(column) for name, column in tokens.items()},
        },
        {
            "index": torch.arange(row_count),
            "group": torch.from_numpy(group),
            "weight": torch.from_numpy(weight),
            "truncated": torch.from_numpy(rng.random(row_count) < 0.2),
            **{name: torch.from_numpy(column) for name, column in rows.items()},
        },
        torch.from_numpy(np.concatenate([[0], lengths.cumsum()])),
    )
