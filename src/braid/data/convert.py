"""From other layouts, and from scores, to row tables; and from row tables to row tables of another format."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from braid.data.build import ARRIVAL_MIX, laid_out, require_arrival, source_of
from braid.data.chat_files import read_chats
from braid.data.manifest import ConvertManifest
from braid.data.readers import read_grids, read_npz, read_stream_data
from braid.data.row_table import RowTable
from braid.data.scores import SCORES, read_scores
from braid.data.tables import read_tables, write_tables
from braid.data.tokens import DataTokenizer
from braid.errors import DataError
from braid.streams.strict import hint

__all__ = ["LAYOUTS", "convert"]

LAYOUTS = ("rows", "scores", "chats", "grid", "npz", "stream-data")
"""What can be read."""

_TEXTS = ("scores", "chats")
_GRIDS = ("grid", "npz", "stream-data")


def convert(
    file: str | Path,
    out: str | Path,
    layout: str | None = None,
    *,
    tokenizer: DataTokenizer | None = None,
    streams: tuple[str, ...] = ("user", "output"),
    inputs: tuple[str, ...] = ("user",),
    silence_id: int | None = None,
    end_id: int | None = None,
    arrival: str = ARRIVAL_MIX,
    seed: int = 0,
    on_progress: Callable[[int], None] | None = None,
) -> ConvertManifest:
    """Convert a file to row tables, and write a manifest beside them.

    Args:
        file: What is read: a file, or a folder of `.npz`.
        out: A `.jsonl` or `.parquet`.
        layout: One of `LAYOUTS`; told by the name if None.
        tokenizer: Of the model; for text.
        streams: Names of the streams of `grid` and `npz`.
        inputs: Streams of grids that are not learned.
        silence_id, end_id: What stands in silent slots of grids, and what ends a turn; the tokenizer's if None.
        arrival: `mixed`, or one way for all, where scores or chats are laid out.
        seed: Of the arrivals.
        on_progress: Is told how many examples are done.

    Raises:
        DataError: The file cannot be read or written, or what it needs is not there.
    """
    file = Path(file)
    if layout is None:
        layout = "scores" if file.name.endswith(SCORES) else "npz" if file.is_dir() else "rows"
    if layout not in LAYOUTS:
        raise DataError(f"there is no layout {layout!r}; {hint(layout, LAYOUTS)}")
    require_arrival(arrival)
    if layout in _TEXTS and tokenizer is None:
        raise DataError(f"{layout} are text; name the tokenizer of the model with --tokenizer")
    if tokenizer is not None and layout in _GRIDS:
        silence_id = tokenizer.silence_id if silence_id is None else silence_id
        end_id = tokenizer.end_id if end_id is None else end_id
    if layout in ("grid", "npz") and silence_id is None:
        raise DataError("say what stands in silent slots with --silence-id, or name the tokenizer")
    manifest = ConvertManifest(
        source=source_of(file),
        seed=seed if layout in _TEXTS else None,
        arrival=arrival if layout in _TEXTS else None,
        tokenizer=tokenizer.fingerprint if tokenizer is not None else None,
        layout=layout,
        streams=streams if layout in ("grid", "npz") else (),
        inputs=inputs if layout in ("grid", "stream-data") else (),
        silence_id=silence_id,
        end_id=end_id,
    )
    tables = _tables(file, manifest, tokenizer)
    manifest.count = write_tables(out, manifest.measured(tables), on_progress=on_progress)
    manifest.write(out)
    return manifest


def _tables(file: Path, manifest: ConvertManifest, tokenizer: DataTokenizer | None) -> Iterator[RowTable]:
    streams, inputs = manifest.streams, manifest.inputs
    silence_id, end_id = manifest.silence_id, manifest.end_id
    if manifest.layout == "stream-data":
        return read_stream_data(file, inputs, tokenizer=tokenizer, silence_id=silence_id, end_id=end_id)
    if manifest.layout == "npz" and silence_id is not None:
        return read_npz(file, streams, silence_id, end_id)
    if manifest.layout == "grid" and silence_id is not None:
        return read_grids(file, streams, inputs, silence_id, end_id)
    if tokenizer is not None and manifest.arrival is not None:
        scores = read_scores(file) if manifest.layout == "scores" else read_chats(file)
        return laid_out(scores, tokenizer, manifest.arrival, series=str(manifest.seed))
    return read_tables(file)
