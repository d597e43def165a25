"""Manifests: how a file was made. One stands beside each file that `braid data build` or `convert` writes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from braid._version import __version__
from braid.data.files import sha256_of, write_text
from braid.data.row_table import RowTable

__all__ = ["BuildManifest", "ConvertManifest", "Manifest", "manifest_path"]


@dataclass(kw_only=True)
class Manifest:
    """What is told of every file.

    Args:
        source: The file or folder that was read, without its path, and its SHA-256; None if there was none.
        seed: As wished; None where nothing was drawn.
        arrival: `mixed`, or one of `paced`, `typed`, `paste`; None where nothing was laid out.
        count: Examples in the file.
        num_rows, num_tokens, num_asked: Of all examples together.
        tokenizer: Its fingerprint; None if there was none.
        sha256: Of the file.
        braid: The version that made it.
    """

    source: Mapping[str, str] | None
    seed: int | None
    arrival: str | None
    count: int = 0
    num_rows: int = 0
    num_tokens: int = 0
    num_asked: int = 0
    tokenizer: str | None = None
    sha256: str = ""
    braid: str = __version__

    def measured(self, tables: Iterable[RowTable]) -> Iterator[RowTable]:
        """The tables, their sizes added as they pass."""
        for table in tables:
            self.num_rows += table.num_rows
            self.num_tokens += table.num_tokens
            self.num_asked += sum(lane.num_asked for lane in table.lanes)
            yield table

    def write(self, path: str | Path) -> None:
        """Write it beside its file, which is complete.

        Raises:
            DataError: It cannot be written.
        """
        self.sha256 = sha256_of(path)
        write_text(manifest_path(path), json.dumps(self.to_json(), indent=2, ensure_ascii=False) + "\n")

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return dict(vars(self))


@dataclass(kw_only=True)
class BuildManifest(Manifest):
    """How a file was built.

    Args:
        builder, split, wait_k, inputs, faults: As wished; what the builder does not heed has its default.
        any_step: Whether examples with steps that could not be known were kept.
        judge: The judge's model; None if there was none.
        weights: Of the loss, by stream.
        left_out: Examples that are not in the file, because a step could not be known.
        moved: Steps that the causality validator moved.
        splits: Split that an example says it belongs to → how many.
    """

    builder: str
    split: str
    wait_k: int
    inputs: tuple[str, ...]
    faults: tuple[str, ...]
    any_step: bool
    judge: str | None
    weights: Mapping[str, float]
    left_out: int = 0
    moved: int = 0
    splits: dict[str, int] = field(default_factory=dict[str, int])


@dataclass(kw_only=True)
class ConvertManifest(Manifest):
    """How a file was converted.

    Args:
        layout: What was read: one of `braid.data.convert.LAYOUTS`.
        streams, inputs: What the streams of a grid were called, and those of them that are not learned.
        silence_id, end_id: What stood in silent slots, and what ended a turn.
    """

    layout: str
    streams: tuple[str, ...]
    inputs: tuple[str, ...]
    silence_id: int | None
    end_id: int | None


def manifest_path(path: str | Path) -> Path:
    """Where the manifest of a file stands."""
    return Path(f"{path}.manifest.json")
