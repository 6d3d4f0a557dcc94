"""What a job asks of its nodes, and the words for its training that follow from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from laurel.types import LaurelError


@dataclass(frozen=True)
class Terms:
    """``gpus`` and ``cores`` are per node; ``cores=0`` is what the node's control group allows. ``least`` nodes are
    enough at the deadline, ``join_timeout_s`` after the last sign of progress."""

    gpus: int = 0
    cores: int = 0
    least: int = 0
    join_timeout_s: float = 600.0
    port: int | None = None


def training_words(settings: Sequence[str], *, nodes: int, came: int, gpus: int) -> list[str]:
    """The settings of the training: what the user said, and the numbers of nodes and GPUs where they are silent.

    ``came`` fewer than ``nodes`` (only --min-nodes allows it) overrides ``trainer.nnodes``.
    """
    words = list(settings)
    if came < nodes:
        words = [word for word in words if not word.lstrip("+").startswith("trainer.nnodes=")]
    if given(words, "trainer.nnodes") is None:
        words.append(f"trainer.nnodes={came}")
    if gpus and given(words, "trainer.n_gpus_per_node") is None:
        words.append(f"trainer.n_gpus_per_node={gpus}")
    return words


def check_nodes(settings: Sequence[str], nodes: int) -> None:
    """Raises LaurelError if the settings ask for another number of nodes than the job has."""
    said = given(settings, "trainer.nnodes")
    if said is not None and said != str(nodes):
        raise LaurelError(
            f"trainer.nnodes={said}, but the job has {nodes} nodes; leave trainer.nnodes out, or ask for {said} nodes"
        )


def given(settings: Sequence[str], key: str) -> str | None:
    """The value that the words give a key, the last one if several do."""
    return next((word.partition("=")[2] for word in reversed(settings) if word.lstrip("+").startswith(f"{key}=")), None)
