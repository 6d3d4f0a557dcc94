"""The words of Laurel as frozen data: what travels between rooms, without torch.

A *prompt* is what the model is given; a *group* is the n *trajectories* of one prompt; a *completion* is one reply of
an engine; a *turn* is a completion or an answer of the environment (a tool, a user).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

FinishReason = Literal["stop", "length", "abort"]
UnscoredKind = Literal["error", "time", "memory", "crash"]


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong with what the user asked for, found before anything is held.

    Example: ``Problem("rollout.tensor_model_parallel_size", 3, "does not divide ...; use 1, 2, 4 or 8")``.
    ``machine`` marks a problem of the machine the check ran on (a missing package, no GPU), which ``--dry-run`` reports
    without failing because the job may run elsewhere.
    """

    field: str
    value: Any
    cure: str
    machine: bool = False

    def __str__(self) -> str:
        return f"{self.field}={self.value!r}: {self.cure}"


class LaurelError(Exception):
    """An error whose message names the field or thing, its value and the cure; shown without a traceback."""


class ConfigError(LaurelError):
    """All problems found at load, together."""

    def __init__(self, problems: Sequence[Problem]):
        self.problems = tuple(problems)
        lines = "\n".join(f"  {i}. {problem}" for i, problem in enumerate(self.problems, 1))
        count = len(self.problems)
        super().__init__(f"{count} problem{'s' if count != 1 else ''} in the configuration:\n{lines}")


@dataclass(frozen=True, slots=True)
class Prompt:
    """One row of a data file, tokenized.

    ``index`` is the row's place over all files of its split, in file order, and is its identity.
    """

    index: int
    input_ids: tuple[int, ...]
    messages: tuple[Mapping[str, Any], ...]
    data_source: str
    ground_truth: Any
    ability: str = ""
    extra_info: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to sample. ``temperature=0`` is greedy. ``top_k=-1`` and ``top_p=1`` mean the whole vocabulary."""

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False


@dataclass(frozen=True, slots=True)
class Request:
    """One completion wanted from an engine.

    ``seed`` alone decides the random numbers of this completion, so a result does not depend on what else runs.
    ``group`` names the requests that share ``prompt_ids``: an engine may prefill them once.
    """

    id: str
    prompt_ids: tuple[int, ...]
    sampling: SamplingParams
    seed: int
    group: str = ""


@dataclass(frozen=True, slots=True)
class Completion:
    """One reply of an engine: sampled tokens, a stop token included.

    ``log_probs[i]`` is log_softmax(logits / temperature)[token_ids[i]] over the whole vocabulary, before top-k and
    top-p (at temperature 0: of the logits as they are). None if the engine cannot report that.
    """

    request_id: str
    token_ids: tuple[int, ...]
    log_probs: tuple[float, ...] | None
    finish_reason: FinishReason
    policy_version: int


@dataclass(frozen=True, slots=True)
class Turn:
    """Consecutive response tokens of one origin. ``sampled`` is True only for tokens that the policy sampled."""

    token_ids: tuple[int, ...]
    sampled: bool
    log_probs: tuple[float, ...] | None = None


@dataclass(frozen=True, slots=True)
class Score:
    """What a reward function said of one trajectory: the scalar, and further named numbers for the logs."""

    value: float
    extras: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Unscored:
    """Why a trajectory has no score: the reward function raised or returned what is no score (error), reached its limit
    of time or memory, or its process died (crash). Nothing is learned from such a trajectory.
    """

    kind: UnscoredKind
    reason: str


@dataclass(frozen=True, slots=True)
class Trajectory:
    """A whole episode of one prompt. ``sample`` counts within its group. Once scored it has ``score``, or ``unscored``
    if that failed.
    """

    sample: int
    turns: tuple[Turn, ...]
    finish_reason: FinishReason
    policy_version: int
    score: Score | None = None
    text: str = ""
    unscored: Unscored | None = None

    @property
    def response_ids(self) -> tuple[int, ...]:
        return tuple(token for turn in self.turns for token in turn.token_ids)


@dataclass(frozen=True, slots=True)
class Group:
    """The n trajectories of one prompt.

    ``baseline`` is the greedy answer that some algorithms compare them with; nothing is learned from its tokens.
    """

    prompt: Prompt
    trajectories: tuple[Trajectory, ...]
    baseline: Trajectory | None = None


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Checksums of weights as they lie in memory: tensor name to an integer made of every element's bits."""

    version: int
    tensors: Mapping[str, int]
