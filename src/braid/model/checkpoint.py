"""The checkpoint folder: what a model was trained with, beside its weights or on top of a base.

    braid.json           streams, reads, patterns, same-row and silence rules, the base if there is one
    braid.safetensors    stream embeddings `s`, one row a stream, [H, D]
    config.json, …       a whole transformers folder, unless `base` names where that is

What is in `braid.json` is part of the weights: a caller's topology may add to it, never contradict it.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, cast

import torch
from pydantic import Field, ValidationError
from safetensors.torch import load_file, save_file
from torch import Tensor

from braid.errors import (
    BraidError,
    CheckpointConflictError,
    InputError,
    UnsupportedModelError,
    WeightsCorruptError,
    WeightsMissingError,
)
from braid.model.convert import quiet_transformers
from braid.model.sources import CHECKPOINT_FILE
from braid.model.store import share
from braid.model.weights import check_safetensors
from braid.streams.patterns import Dense, PatternField
from braid.streams.strict import Frozen, FrozenMap, StrictModel, translated
from braid.streams.topology import Direction, SameRow, SilenceRule, StreamSpec, Topology

if TYPE_CHECKING:
    from braid.model.model import Model

__all__ = [
    "TrainedStreams",
    "TrainedTopology",
    "read_checkpoint",
    "reconcile",
    "save_checkpoint",
    "write_streams",
]

_VERSION = 1
_KEY = "stream_embeddings"


class TrainedTopology(StrictModel):
    """The part of a topology that a model learns, with nothing left to defaults.

    Args:
        streams: Direction by name, in the order `h` of the stream embeddings.
        reads: For every stream, what it reads beside itself, in that order.
        patterns: Reader → read → the rows of it that are seen; dense where it says nothing.
        same_row: Whether a token sees the earlier streams of its own row.
        silence: Whether silence is dropped or kept as a token.
    """

    refusal: ClassVar[type[BraidError]] = WeightsCorruptError

    streams: Frozen[str, Direction]
    reads: Frozen[str, tuple[str, ...]]
    patterns: Frozen[str, Frozen[str, PatternField]] = FrozenMap()
    same_row: SameRow
    silence: SilenceRule

    @classmethod
    def of(cls, topology: Topology) -> Self:
        """What a model learns when it is trained with `topology`."""
        return cls(
            streams={name: spec.direction for name, spec in topology.streams.items()},
            reads={reader: _reads(topology, reader) for reader in topology.streams},
            patterns=_patterns(topology),
            same_row=topology.same_row,
            silence=topology.silence,
        )

    def to_topology(self) -> Topology:
        """A topology of exactly this structure, its scheduling left to defaults."""
        return Topology(
            streams={name: StreamSpec(direction=direction) for name, direction in self.streams.items()},
            reads=dict(self.reads),
            patterns={reader: dict(row) for reader, row in self.patterns.items()},
            same_row=self.same_row,
            silence=self.silence,
        )


class TrainedStreams(StrictModel):
    """The contents of `braid.json`.

    Args:
        version: Of the format.
        topology: What the model was trained with.
        silence_token_id: The class that means silence, and the token that a probe embeds.
        base: Where the network is, if it is not in the same folder: an alias, a hub id, or a path relative to it.
        stream_embeddings: File beside `braid.json` with the tensor `stream_embeddings`, `[H, D]`.
    """

    refusal: ClassVar[type[BraidError]] = WeightsCorruptError

    version: Literal[1] = _VERSION
    topology: TrainedTopology
    silence_token_id: int = Field(ge=0)
    base: str | None = None
    stream_embeddings: str = Field(default="braid.safetensors", pattern=r"^[\w.-]+\.safetensors$")


def read_checkpoint(folder: Path) -> tuple[TrainedStreams, Tensor]:
    """Read what a checkpoint was trained with.

    Args:
        folder: A folder with a `braid.json`.

    Returns:
        Its contents, and the stream embeddings, `[H, D]` in float32 on the CPU.

    Raises:
        UnsupportedModelError: It was written by another version of the format.
        WeightsMissingError: The stream embeddings are not there.
        WeightsCorruptError: Either file is damaged, or they do not fit together.
    """
    path = folder / CHECKPOINT_FILE
    try:
        data = cast("dict[str, Any]", json.loads(path.read_text(encoding="utf-8")))
        version = data["version"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise WeightsCorruptError(f"{path} cannot be read ({error!r}); fetch the checkpoint again") from error
    if version != _VERSION:
        raise UnsupportedModelError(
            f"{path} has format version {version!r} and this Braid reads version {_VERSION}; install the Braid that "
            "wrote it, or save it again with this one"
        )
    try:
        trained = TrainedStreams.model_validate(data)
        trained.topology.to_topology()
    except ValidationError as error:
        raise WeightsCorruptError(f"{path}: {translated(error, WeightsCorruptError)}") from error
    except BraidError as error:
        raise WeightsCorruptError(f"{path} holds an impossible topology: {error}") from error
    return trained, _read_embeddings(folder / trained.stream_embeddings, len(trained.topology.streams))


def save_checkpoint(folder: str | Path, model: Model, *, base: str | None = None) -> Path:
    """Write a model and what it was trained with, whole or not at all.

    Args:
        folder: Where to; it must not exist yet, or be empty.
        model: A model with `trained` set.
        base: Alias, hub id or relative path of the unchanged network; without it the network is written too.

    Returns:
        The folder.

    Raises:
        InputError: The model has no trained streams, or the folder holds something already.
    """
    target = Path(folder)
    if model.trained is None:
        raise InputError(
            "the model has stock weights and no trained streams; save it with model.hf.save_pretrained"
        )
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise InputError(f"{target} exists and is not an empty folder; name another, or remove it first")
    trained = model.trained.model_copy(update={"base": base})
    embeddings_HD = model.stream_embeddings_HD
    if embeddings_HD is None:
        embeddings_HD = torch.zeros(len(trained.topology.streams), model.architecture.hidden_size)
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        if base is None:
            with quiet_transformers():
                model.hf.save_pretrained(draft)
                model.codec.hf.save_pretrained(draft)
        write_streams(draft, trained, embeddings_HD)
        share(draft)
        draft.replace(target)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return target


def write_streams(folder: Path, trained: TrainedStreams, embeddings_HD: Tensor) -> None:
    """Write what a model was trained with into the folder of its network.

    Args:
        folder: Of the network, or one of its own where `trained.base` names the network.
        trained: What goes into `braid.json`.
        embeddings_HD: Of the streams.
    """
    exact_HD = embeddings_HD.float() if embeddings_HD.dtype.itemsize < 4 else embeddings_HD
    save_file({_KEY: exact_HD.detach().cpu().contiguous()}, folder / trained.stream_embeddings)
    text = json.dumps(trained.model_dump(mode="json"), indent=2)
    (folder / CHECKPOINT_FILE).write_text(f"{text}\n", encoding="utf-8")


def reconcile(trained: TrainedStreams, topology: Topology) -> Topology:
    """Complete a caller's topology with what the checkpoint was trained with.

    Args:
        trained: What the checkpoint says; it wins wherever the caller says nothing.
        topology: What the caller says; its scheduling is kept.

    Returns:
        A topology of the checkpoint's structure with the caller's scheduling.

    Raises:
        CheckpointConflictError: The caller says otherwise; the message names the field and both values.
        ForbiddenFlowError: The caller's `forbid` cannot be kept with what the checkpoint reads.
    """
    learned = trained.topology
    asked = TrainedTopology.of(topology)
    stated = topology.model_fields_set
    _agree("streams", list(learned.streams), list(asked.streams))
    for name, direction in learned.streams.items():
        _agree(f"streams.{name}.direction", direction, asked.streams[name])
    if "decoding" in stated:
        _agree("decoding", "rows", topology.decoding)
    for field in ("same_row", "silence"):
        if field in stated:
            _agree(field, getattr(learned, field), getattr(asked, field))
    for reader in topology.reads:
        _agree(f"reads.{reader}", list(learned.reads[reader]), list(asked.reads[reader]))
    for reader, row in topology.patterns.items():
        for read, pattern in row.items():
            kept = learned.patterns.get(reader, {}).get(read, Dense())
            _agree(f"patterns.{reader}.{read}", str(kept), str(pattern))
    return topology.model_copy(
        update={
            "decoding": "rows",
            "same_row": learned.same_row,
            "silence": learned.silence,
            "reads": learned.reads,
            "patterns": learned.patterns,
        }
    )


def _agree(field: str, learned: object, asked: object) -> None:
    if learned != asked:
        raise CheckpointConflictError(
            f"{field}: the checkpoint was trained with {learned!r} and the topology says {asked!r}; leave it out of "
            "the topology, or use a checkpoint that was trained so"
        )


def _reads(topology: Topology, reader: str) -> tuple[str, ...]:
    """What a stream reads beside itself; itself too only where its copies are told to read each other."""
    return tuple(
        name
        for name in topology.readable(reader)
        if name != reader or reader in topology.reads.get(reader, ())
    )


def _patterns(topology: Topology) -> dict[str, dict[str, Any]]:
    """The patterns that are not dense."""
    sparse = {
        reader: {read: pattern for read, pattern in row.items() if pattern != Dense()}
        for reader, row in topology.patterns.items()
    }
    return {reader: row for reader, row in sparse.items() if row}


def _read_embeddings(path: Path, num_streams: int) -> Tensor:
    if not path.is_file():
        raise WeightsMissingError(
            f"{path}, which {CHECKPOINT_FILE} names, is not there; fetch the checkpoint again"
        )
    if _KEY not in check_safetensors(path):
        raise WeightsCorruptError(f"{path} has no tensor {_KEY!r}")
    embeddings_HD = load_file(path)[_KEY].float()
    if embeddings_HD.ndim != 2 or embeddings_HD.shape[0] != num_streams:
        raise WeightsCorruptError(
            f"{path}: {_KEY} has the shape {tuple(embeddings_HD.shape)}, and there are {num_streams} streams"
        )
    if not bool(torch.isfinite(embeddings_HD).all()):
        raise WeightsCorruptError(f"{path}: {_KEY} holds values that are not finite")
    return embeddings_HD
