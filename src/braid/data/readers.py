"""Readers of other layouts: grids of tokens in which silence takes a slot.

A grid has a token in every row of every stream; where a stream is silent stands a silence token, or `-` where the grid
is text. As a row table only what is said is kept, and rows in which nobody says anything are squeezed out. After its
end an output is not asked until its next turn; grids of ids have their ends, those of text are given them.

    grid     user    How many  -   -         row table   user    rows 0 1
             output  -   -     -   7                     output  rows 2       asked [0, 2]
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from braid.data.row_table import Lane, RowTable, ranges_of
from braid.data.rules import turn_ends
from braid.data.tables import json_lines, read_records
from braid.data.tokens import DataTokenizer
from braid.errors import DataCorruptError, DataError

__all__ = ["grid_table", "read_grids", "read_npz", "read_stream_data"]

IGNORED = -100
"""A label that is none."""

Grid = Mapping[str, Sequence[int | None]]
"""Stream → what stands in each row; None is silence."""


def grid_table(
    grid: Grid,
    name: str,
    inputs: Sequence[str],
    *,
    end_id: int | None = None,
    meta: Mapping[str, Any] | None = None,
) -> RowTable:
    """The row table of a grid; its outputs are asked until their end, or to the last row, after which nothing is told.

    Args:
        grid: Stream → what stands in each row, None where it is silent; all as long as each other.
        name: Of the example.
        inputs: The streams that are not learned.
        end_id: What ends a turn; without it, outputs are asked in every row but the last.
        meta: Of the example.

    Raises:
        DataError: Nothing is said at all, or the streams are not of one length.
    """
    lengths = {len(cells) for cells in grid.values()}
    if len(lengths) != 1:
        raise DataError(
            f"{name}: the streams of a grid have as many rows as each other, not {sorted(lengths)}"
        )
    filled = [row for row in range(lengths.pop()) if any(cells[row] is not None for cells in grid.values())]
    if not filled:
        raise DataError(f"{name}: nobody says anything in this grid")
    lanes: list[Lane] = []
    for stream, cells in grid.items():
        said = [(place, token) for place, row in enumerate(filled) if (token := cells[row]) is not None]
        rows, ids = [place for place, _ in said], [token for _, token in said]
        is_input = stream in inputs
        asked = ((0, len(filled) - 1),) if not is_input and len(filled) > 1 else ()
        lanes.append(Lane(stream, rows, ids, asked, 0.0 if is_input else 1.0))
    return _asked_until_ends(RowTable(name, len(filled), tuple(lanes), dict(meta or {})), end_id)


def _asked_until_ends(table: RowTable, end_id: int | None) -> RowTable:
    """The same example, in which nobody is asked between the end of a turn and the next one."""
    if end_id is None:
        return table
    ends = turn_ends(table, table.lanes, end_id)
    lanes: list[Lane] = []
    for lane in table.lanes:
        over = {row for end, turn in ends.get(lane.stream, ()) for row in range(end, turn)}
        lanes.append(replace(lane, asked=ranges_of(lane.asked_rows - over)))
    return replace(table, lanes=tuple(lanes))


def read_grids(
    path: str | Path,
    streams: Sequence[str],
    inputs: Sequence[str],
    silence_id: int,
    end_id: int | None = None,
) -> Iterator[RowTable]:
    """Read a `dataset.jsonl` whose lines have `num_rows` and `token_ids`, a list of token ids a stream.

    Args:
        path: The file, or its folder.
        streams: What to call the streams, in their order.
        inputs: Those that are not learned.
        silence_id: What stands in silent slots.
        end_id: What ends a turn.

    Raises:
        DataCorruptError: A line is no such grid.
        DataError: The file cannot be read.
    """
    path = Path(path)
    file = path / "dataset.jsonl" if path.is_dir() else path
    for line, text in json_lines(file):
        try:
            data = json.loads(text)
            num_rows, token_ids = data["num_rows"], data["token_ids"]
            if len(token_ids) != len(streams) or any(len(ids) < num_rows for ids in token_ids):
                sizes = f"{len(token_ids)} streams of {sorted({len(ids) for ids in token_ids})} rows"
                raise DataCorruptError(f"{sizes}, not {len(streams)} of {num_rows}")
            grid = {
                stream: [None if token == silence_id else int(token) for token in ids[:num_rows]]
                for stream, ids in zip(streams, token_ids, strict=True)
            }
            yield grid_table(grid, str(data.get("id", f"{file.stem}-{line}")), inputs, end_id=end_id)
        except (KeyError, TypeError, ValueError) as error:
            raise DataCorruptError(f"{file}, line {line}: this is no grid of tokens: {error}") from None


def read_npz(
    folder: str | Path, streams: Sequence[str], silence_id: int, end_id: int | None = None
) -> Iterator[RowTable]:
    """Read a folder of `.npz` with `input_ids`, `labels` and `position_ids`, whose columns are stream and time.

    A label may be the token itself, or the one that its stream says in the next row; which one it is, is told by the
    data. A stream without labels is an input.

    Args:
        folder: Where they are.
        streams: What to call the streams, in their order.
        silence_id: What stands in silent slots.
        end_id: What ends a turn.

    Raises:
        DataCorruptError: A file is no such array, or its labels are neither.
        DataError: There is no such file.
    """
    files = sorted(Path(folder).glob("*.npz"))
    if not files:
        raise DataError(f"there is no .npz in {folder}")
    for file in files:
        yield _asked_until_ends(_npz_table(file, streams, silence_id), end_id)


def _npz_table(file: Path, streams: Sequence[str], silence_id: int) -> RowTable:
    import zipfile

    import numpy as np

    try:
        with np.load(file, allow_pickle=False) as arrays:
            ids, labels, positions = (arrays[key] for key in ("input_ids", "labels", "position_ids"))
    except (OSError, KeyError, ValueError, zipfile.BadZipFile) as error:
        raise DataCorruptError(
            f"{file} is no .npz with input_ids, labels and position_ids: {error}"
        ) from None
    ids, labels = ids.reshape(-1), labels.reshape(-1)
    if positions.shape != (len(ids), 2) or len(labels) != len(ids):
        raise DataCorruptError(f"{file}: position_ids is [S, 2] beside {len(ids)} ids, not {positions.shape}")
    if positions.size and int(positions[:, 0].max()) >= len(streams):
        raise DataCorruptError(
            f"{file} has the stream {int(positions[:, 0].max())}; only {len(streams)} have names"
        )
    said: dict[tuple[int, int], int] = {}
    told: dict[tuple[int, int], int] = {}
    for (h, t), token, label in zip(positions.tolist(), ids.tolist(), labels.tolist(), strict=True):
        said[h, t] = token
        if label != IGNORED:
            told[h, t] = label
    asked_of = _asked_of(said, told)
    if asked_of is None:
        raise DataCorruptError(
            f"{file}: labels are neither the tokens themselves nor the next ones of their streams"
        )
    return _squeezed(file.stem, streams, said, asked_of, silence_id)


def _asked_of(
    said: Mapping[tuple[int, int], int], told: Mapping[tuple[int, int], int]
) -> dict[int, set[int]] | None:
    """By stream, the times at which it is asked; None where the labels make no sense."""
    is_next = all(said.get((h, t + 1), label) == label for (h, t), label in told.items())
    is_same = all(said[place] == label for place, label in told.items())
    asked: dict[int, set[int]] = {}
    if not (is_next or is_same):
        return None
    for h, t in told:
        asked.setdefault(h, set()).add(t if is_next else t - 1)
    return asked


def _squeezed(
    name: str,
    streams: Sequence[str],
    said: Mapping[tuple[int, int], int],
    asked_of: Mapping[int, set[int]],
    silence_id: int,
) -> RowTable:
    """Without silence, and without the rows in which there is nothing else."""
    times = sorted({t for (_, t), token in said.items() if token != silence_id})
    if not times:
        raise DataCorruptError(f"{name}: nobody says anything")
    row_of = {t: row for row, t in enumerate(times)}
    lanes: list[Lane] = []
    for h, stream in enumerate(streams):
        own = [(row_of[t], said[h, t]) for t in times if said.get((h, t), silence_id) != silence_id]
        asked = sorted(row_of[t] for t in asked_of.get(h, ()) if t in row_of and row_of[t] < len(times) - 1)
        rows, ids = [row for row, _ in own], [token for _, token in own]
        # Where an empty row between a question and its answer is squeezed out, the row before it asks.
        asked_rows = set(asked) | {row - 1 for row in rows if row and times[row] - 1 in asked_of.get(h, ())}
        lanes.append(Lane(stream, rows, ids, ranges_of(asked_rows), 1.0 if h in asked_of else 0.0))
    return RowTable(name, len(times), tuple(lanes), {})


def read_stream_data(
    path: str | Path,
    inputs: Sequence[str] = ("user",),
    *,
    tokenizer: DataTokenizer | None = None,
    silence_id: int | None = None,
    end_id: int | None = None,
    skip: Sequence[str] = ("id", "input_prompt"),
) -> Iterator[RowTable]:
    """Read the layout of `JonasGeiping/stream-data`: a grid, one list a stream; as Parquet or JSON lines.

    Args:
        path: The file. A stream's column is a list, of token ids or of pieces of text.
        inputs: The streams that are not learned; all streams are called by their column, in small letters.
        tokenizer: For pieces of text, where `-` and the empty text are silence; a piece takes as many rows as the
            longest of its row.
        silence_id: What stands in silent slots of token ids.
        end_id: What ends a turn in token ids; text gets the tokenizer's, each stream after its last word, and an output
            that says nothing when the others have spoken.
        skip: Columns that are no streams.

    Raises:
        DataCorruptError: A record is no such grid.
        DataError: The file cannot be read, or text was found and there is no tokenizer.
    """
    for place, record in read_records(path):
        columns = {
            re.sub(r"\W+", "_", key.strip().lower()): cast("list[Any]", value)
            for key, value in record.items()
            if key not in skip and isinstance(value, list)
        }
        if not columns:
            raise DataCorruptError(f"{path}, record {place}: no column is a list")
        is_text = any(isinstance(cell, str) for cells in columns.values() for cell in cells)
        if is_text and tokenizer is None:
            raise DataError(f"{path} has text; name the tokenizer that is to make tokens of it")
        name = str(record.get("id") or f"{Path(path).stem}-{place}")
        try:
            if is_text and tokenizer is not None:
                grid = _with_ends(_tokenized(columns, tokenizer), inputs, tokenizer.end_id)
                table = grid_table(grid, name, inputs, end_id=tokenizer.end_id)
            else:
                table = grid_table(_without(columns, silence_id), name, inputs, end_id=end_id)
        except (TypeError, ValueError, AttributeError) as error:
            raise DataCorruptError(f"{path}, record {place}: this is no grid of tokens: {error}") from None
        yield table


def _without(columns: Mapping[str, Sequence[Any]], silence_id: int | None) -> Grid:
    longest = max(map(len, columns.values()))
    return {
        stream: [
            None if cell is None or cell == silence_id else int(cell)
            for cell in [*cells, *[None] * (longest - len(cells))]
        ]
        for stream, cells in columns.items()
    }


def _tokenized(columns: Mapping[str, Sequence[Any]], tokenizer: DataTokenizer) -> dict[str, list[int | None]]:
    """Pieces of text as tokens; a row of pieces becomes as many rows as its longest piece has tokens."""
    grid: dict[str, list[int | None]] = {stream: [] for stream in columns}
    for row in range(max(map(len, columns.values()))):
        pieces: dict[str, tuple[int, ...]] = {}
        for stream, cells in columns.items():
            piece = cells[row] if row < len(cells) else None
            is_silent = piece is None or piece.strip() in ("", "-")
            space = (
                " "
                if any(token is not None for token in grid[stream]) and not str(piece)[:1].isspace()
                else ""
            )
            pieces[stream] = () if is_silent else tokenizer.encode(f"{space}{piece}")
        longest = max(map(len, pieces.values()))
        for stream, tokens in pieces.items():
            grid[stream] += [*tokens, *[None] * (longest - len(tokens))]
    return grid


def _with_ends(grid: dict[str, list[int | None]], inputs: Sequence[str], end_id: int) -> Grid:
    """With an end after what each stream says; outputs that say nothing end when the others have spoken."""
    num_rows = max(map(len, grid.values()))
    ended: dict[str, list[int | None]] = {}
    for stream, cells in grid.items():
        said = [row for row, token in enumerate(cells) if token is not None]
        ended[stream] = [*cells, None]
        if said and cells[said[-1]] != end_id:
            ended[stream][said[-1] + 1] = end_id
        elif not said and stream not in inputs:
            ended[stream][num_rows] = end_id
    return ended
