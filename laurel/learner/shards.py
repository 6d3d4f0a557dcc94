"""A role's tensors on disk: one safetensors file per rank, whose header says which rows of which tensors it holds.

Any number of ranks reads what any number wrote: a rank copies the rows that it needs out of the files that have them.
A file holds data only; nothing in it is executed. Keys are ``param/NAME``, ``exp_avg/NAME`` and ``exp_avg_sq/NAME``,
all float32; ``state.json`` holds the counts; ``huggingface/`` holds config and tokenizer, for export.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import safe_open
from torch import Tensor
from torch.distributed.tensor import DTensor, Shard

from laurel.config.tree import Model
from laurel.learner.disk import Entry, entries_of, files_below, write_chunks, writing
from laurel.learner.dist import Ranks
from laurel.learner.optim import Optimizer
from laurel.models.load import ValueModel, save_description
from laurel.types import LaurelError

FORMAT_VERSION = 1
DESCRIPTION = "huggingface"
STATE = "state.json"
PARAM = "param/"
_HEADER = "laurel"
_CHUNK_BYTES = 16 << 20


class Trained(Protocol):
    """What of a learner is saved. ``copies`` is how many ranks hold the same shard."""

    role: str
    module: Any
    model: Model
    ranks: Ranks
    copies: int
    optimizer: Optimizer | None


@dataclass(frozen=True)
class Rows:
    """Rows [first, first + count) along dimension 0 of a tensor of ``shape``. A scalar counts as one row."""

    shape: tuple[int, ...]
    first: int
    count: int


def rows_of(tensor: Tensor) -> Rows:
    """Which rows of the whole tensor this rank holds."""
    shape = tuple(tensor.shape)
    if not isinstance(tensor, DTensor):
        return Rows(shape, 0, shape[0] if shape else 1)
    split = [dim for dim, placement in enumerate(tensor.placements) if isinstance(placement, Shard)]
    if len(split) != 1 or tensor.placements[split[0]].dim != 0:  # type: ignore[attr-defined]
        raise ValueError(f"only tensors sharded once along dimension 0 can be saved; got {tensor.placements}")
    mesh = tensor.device_mesh
    coordinate = mesh.get_coordinate()
    assert coordinate is not None
    # As torch.chunk: every rank but the last ones holds ceil(rows / ranks)
    size = -(-shape[0] // mesh.size(split[0]))
    first = min(coordinate[split[0]] * size, shape[0])
    count = min(first + size, shape[0]) - first
    if count != tensor.to_local().shape[0]:
        raise ValueError(f"a shard of {shape} has {tensor.to_local().shape[0]} rows where {count} are expected")
    return Rows(shape, first, count)


@dataclass(frozen=True)
class Snapshot:
    """What one rank writes of a role. ``tensors`` are this rank's rows, or nothing where another rank has the same;
    ``state`` is there on rank 0, which adds counts and the model's description."""

    shard: str
    tensors: Mapping[str, Tensor]
    where: Mapping[str, Rows]
    state: Mapping[str, Any] | None
    describe: Callable[[Path], None]

    def write(self, folder: Path) -> dict[str, Entry]:
        """Write this rank's files into ``folder``; each by its path there, flushed and summed. Raises SaveError."""
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            written = {}
            if self.tensors:
                written[self.shard] = write_chunks(folder / self.shard, shard_chunks(self.tensors, self.where))
            if self.state is not None:
                self.describe(folder / DESCRIPTION)
                (folder / STATE).write_text(json.dumps(self.state, indent=1))
                written |= entries_of(folder, [folder / STATE, *files_below(folder / DESCRIPTION)])
            return written


def snapshot_role(learner: Trained, *, copied: bool) -> Snapshot:
    """What this rank writes, as it is now. ``copied``: training may go on before it is written. One replica of each
    shard is taken."""
    optimizer = _optimizer_of(learner)
    shards = learner.ranks.world // learner.copies
    tensors: dict[str, Tensor] = {}
    if learner.ranks.rank < shards:  # a mesh is (replicate, shard): the first replica is the first ranks
        for key, tensor in optimizer.tensors().items():
            tensors[key] = tensor.detach().to("cpu", copy=copied).contiguous()
    state = {
        "format_version": FORMAT_VERSION,
        "role": learner.role,
        "shards": shards,
        "value_model": isinstance(learner.module, ValueModel),
        "counts": optimizer.counts(),
    }
    return Snapshot(
        shard=f"shard-{learner.ranks.rank:05d}-of-{shards:05d}.safetensors",
        tensors=tensors,
        where={name: rows_of(parameter) for name, parameter in optimizer.parameters.items()},
        state=state if learner.ranks.first else None,
        describe=partial(save_description, learner.module, learner.model),
    )


def snapshot_bytes(learner: Trained) -> int:
    """Bytes that this rank writes of a role."""
    if learner.ranks.rank >= learner.ranks.world // learner.copies:
        return 0
    optimizer = _optimizer_of(learner)
    return sum(tensor.numel() * tensor.element_size() for tensor in optimizer.tensors().values())


def save_role(learner: Trained, folder: Path) -> None:
    """Take and write this rank's part, and wait for the other ranks'."""
    snapshot_role(learner, copied=False).write(folder)
    learner.ranks.barrier()


def _optimizer_of(learner: Trained) -> Optimizer:
    if learner.optimizer is None:
        raise ValueError(f"the {learner.role} is frozen; there is nothing to save")
    return learner.optimizer


def missing_shards(folder: Path) -> list[str]:
    """Files of a role that its ranks wrote and that are not here: those of nodes which do not share this disk."""
    names = [path.name for path in Reader(folder, read_state(folder)["shards"]).paths]
    return [name for name in names if not (folder / name).is_file()]


def load_role(learner: Trained, folder: Path) -> None:
    optimizer = learner.optimizer
    if optimizer is None:
        raise ValueError(f"the {learner.role} is frozen; it is loaded from its model, not from a checkpoint")
    state = read_state(folder)
    where = {name: rows_of(parameter) for name, parameter in optimizer.parameters.items()}
    with Reader(folder, state["shards"]) as reader:
        reader.expect({name: rows.shape for name, rows in where.items()})
        for key, target in optimizer.tensors().items():
            with torch.no_grad():
                reader.fill(key, target, where[key.split("/", 1)[1]])
    optimizer.loaded(state["counts"])
    learner.ranks.barrier()


def read_state(folder: Path) -> dict[str, Any]:
    try:
        state = json.loads((folder / STATE).read_text())
    except (OSError, ValueError) as error:
        raise LaurelError(f"{folder / STATE} cannot be read ({error}); choose another checkpoint") from error
    if state["format_version"] > FORMAT_VERSION:
        raise LaurelError(
            f"{folder} has format_version {state['format_version']}, and this Laurel reads up to {FORMAT_VERSION}; "
            "update Laurel"
        )
    return state


def shard_chunks(tensors: Mapping[str, Tensor], where: Mapping[str, Rows]) -> Iterator[bytes | memoryview]:
    """The bytes of a shard in the format of safetensors, in order, without a copy of the tensors: float32, on the CPU.

    ``where`` maps the part of a key after its first slash to the rows that the tensor holds. Format: the length of the
    header (8 bytes, little-endian), the header as JSON, the tensors one after the other.
    https://huggingface.co/docs/safetensors/index#format
    """
    places, header, at = {}, {}, 0
    for key, tensor in tensors.items():
        rows = where[key.split("/", 1)[1]]
        places[key] = {"shape": rows.shape, "first": rows.first, "count": rows.count}
        if tensor.dtype != torch.float32 or tensor.device.type != "cpu":
            raise ValueError(f"{key} is {tensor.dtype} on {tensor.device}; a shard holds float32, written from the CPU")
        if rows.count:  # an empty part needs no entry: nobody asks for its rows
            end = at + tensor.numel() * tensor.element_size()
            header[key] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [at, end]}
            at = end
    text = json.dumps({"__metadata__": {_HEADER: json.dumps(places)}, **header}).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    for key in header:
        data = tensors[key].contiguous().view(-1).numpy().data.cast("B")
        for first in range(0, len(data), _CHUNK_BYTES):
            yield data[first : first + _CHUNK_BYTES]


def write_shard(path: Path, tensors: Mapping[str, Tensor], where: Mapping[str, Rows]) -> None:
    write_chunks(path, shard_chunks(tensors, where))


class Reader:
    """The shards of one role, opened together."""

    def __init__(self, folder: Path, shards: int):
        self.folder = folder
        self.paths = [folder / f"shard-{number:05d}-of-{shards:05d}.safetensors" for number in range(shards)]

    def __enter__(self) -> Reader:
        self.files = []
        self.holders: dict[str, list[tuple[Any, Rows]]] = {}
        try:
            for path in self.paths:
                file = safe_open(path, framework="pt").__enter__()
                self.files.append(file)
                for key, place in json.loads(file.metadata()[_HEADER]).items():
                    rows = Rows(tuple(place["shape"]), place["first"], place["count"])
                    self.holders.setdefault(key, []).append((file, rows))
        except Exception as error:
            self.__exit__()
            raise LaurelError(f"{path} cannot be read ({error}); choose another checkpoint") from error
        return self

    def __exit__(self, *_: object) -> None:
        for file in self.files:
            file.__exit__(None, None, None)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The whole shape of each tensor, by key."""
        return {key: holders[0][1].shape for key, holders in self.holders.items()}

    def expect(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Raise LaurelError naming the tensors if parameters of these names and shapes are not what is stored."""
        stored = {key.removeprefix(PARAM): shape for key, shape in self.shapes.items() if key.startswith(PARAM)}
        wrong = sorted(name for name in stored.keys() | shapes.keys() if stored.get(name) != shapes.get(name))
        if wrong:
            name = wrong[0]
            raise LaurelError(
                f"{self.folder} holds another model: {name} has shape {stored.get(name)} there and {shapes.get(name)} "
                f"here ({len(wrong)} tensors differ); resume with the model that was trained, or set "
                "trainer.resume_mode=disable"
            )

    def whole(self, key: str) -> Tensor:
        shape = self.shapes[key]
        target = torch.empty(shape)
        self.fill(key, target, Rows(shape, 0, shape[0] if shape else 1))
        return target

    def fill(self, key: str, target: Tensor, rows: Rows) -> None:
        """Copy ``rows`` of a stored tensor into ``target``, bit for bit."""
        filled = 0
        for file, held in self.holders.get(key, ()):
            first, last = max(rows.first, held.first), min(rows.first + rows.count, held.first + held.count)
            if first >= last:
                continue
            filled += last - first
            if not rows.shape:
                target.copy_(file.get_tensor(key))
                continue
            part = file.get_slice(key)[first - held.first : last - held.first]
            target[first - rows.first : last - rows.first].copy_(part)
        if filled != rows.count:
            raise LaurelError(f"{self.folder} holds {filled} of {rows.count} rows of {key}; choose another checkpoint")


def parameters(folder: Path) -> Iterator[tuple[str, Tensor]]:
    """The whole float32 parameters of a role, one after the other."""
    with Reader(folder, read_state(folder)["shards"]) as reader:
        for key in reader.shapes:
            if key.startswith(PARAM):
                yield key.removeprefix(PARAM), reader.whole(key)
