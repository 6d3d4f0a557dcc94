"""What the engine and its process say to each other: picklable, over a pair of connected sockets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from laurel.types import FinishReason, Request
from laurel.weights.parcels import Parcel


@dataclass(frozen=True)
class Start:
    """The first message: vLLM's arguments. ``whole_weights``: a CPU's kernels must not lay weights out anew."""

    arguments: Mapping[str, Any]
    whole_weights: bool


@dataclass(frozen=True)
class Generate:
    """``stops`` are all tokens that end each request."""

    requests: tuple[Request, ...]
    stops: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Abort:
    ids: tuple[str, ...]


@dataclass(frozen=True)
class Call:
    """Something that is answered by a Reply: no request is pending, and the next message waits for the answer.

    ``load`` takes a Parcel, ``loaded`` the version that is whole now and gives the checksums, ``wake`` what to wake.
    """

    what: Literal["load", "loaded", "sleep", "wake"]
    argument: Parcel | int | str | None = None


@dataclass(frozen=True)
class Reply:
    """The answer to Start or a Call. With an ``error`` the process has not done it, and is as it was."""

    value: Any = None
    error: str | None = None


@dataclass(frozen=True)
class Done:
    """Completions that ended: id, tokens, log-probs and reason of each."""

    ended: tuple[tuple[str, tuple[int, ...], tuple[float, ...], FinishReason], ...]


@dataclass(frozen=True)
class Refused:
    """vLLM did not take a request."""

    id: str
    error: str
