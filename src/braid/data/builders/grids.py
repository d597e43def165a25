"""Grids of n streams from a table of text: for instance ten inner voices beside a user and an answer.

A record has a column a stream. A column is a list, a cell a row, or a text, whose sentences are the cells. The cells of
one row belong together: a cell of an output begins when the user's cell of its row has been read, and what the other
streams said in the rows before.

    user       Hi, I lost my keys.   They were in my bag.
    calm                 Retrace the steps.    Was it closed?
    worried              Oh no.                Somebody took them!
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

from braid.data.score import Part, Score, Segment
from braid.data.sentences import split_sentences
from braid.errors import DataError
from braid.streams.strict import shown

__all__ = ["grid_score", "stream_name"]

_NO_STREAMS = ("id", "meta")


def stream_name(column: str) -> str:
    """What a stream is called whose column has this name.

    >>> stream_name("Inner Critic (2)")
    'inner_critic_2'
    """
    name = re.sub(r"\W+", "_", column.strip().lower()).strip("_")
    return name if name[:1].isalpha() else f"stream_{name}"


def grid_score(
    record: Mapping[str, Any],
    name: str,
    inputs: Sequence[str] = ("system", "user"),
    last: str | None = "output",
) -> Score:
    """The score of a record.

    Args:
        record: Column → a list of cells, or a text. Empty cells, `-` and None are silence.
        name: Of the example.
        inputs: The streams that are not learned; they come first, and outputs in the order of their columns.
        last: The stream that speaks when the inputs have been read; None if there is none.

    Raises:
        DataError: There is no output, two columns have one name, or a column is neither text nor a list of it.
    """
    columns: dict[str, list[str]] = {}
    for column, value in record.items():
        if column in _NO_STREAMS:
            continue
        stream = stream_name(column)
        if stream in columns:
            raise DataError(f"{name}: two columns are called {stream!r}; rename one")
        columns[stream] = _cells(value, f"{name}: the column {column!r}")
    meta = record.get("meta") or {}
    if not isinstance(meta, Mapping):
        raise DataError(f"{name}: meta is an object, not {shown(meta)}")
    given = [stream for stream in columns if stream in inputs]
    voices = [stream for stream in columns if stream not in inputs and stream != last]
    ordered = [*given, *voices, *([last] if last is not None and last in columns else [])]
    if len(given) == len(ordered):
        raise DataError(
            f"{name}: all columns are inputs ({', '.join(given)}), so that there is nothing to learn"
        )
    said = {stream: _said(columns[stream]) for stream in ordered}
    parts: list[Part] = []
    for stream in ordered:
        segments = [
            Segment(
                text,
                {}
                if stream in given
                else _after(row, stream, given, voices, columns, is_last=stream == last),
            )
            for row, text in said[stream]
        ]
        direction = "input" if stream in given else "output"
        reads = () if stream in given else tuple(given)
        parts.append(Part(stream, direction, tuple(segments), reads=reads))
    return Score(name, tuple(parts), {"num_streams": len(parts), **cast("Mapping[str, Any]", meta)})


def _cells(value: object, what: str) -> list[str]:
    if isinstance(value, str):
        return split_sentences(value) if value.strip() else []
    if value is None:
        return []
    cells = cast("list[object]", value if isinstance(value, list) else [value])
    wrong = next((cell for cell in cells if not (cell is None or isinstance(cell, str))), None)
    if wrong is not None:
        raise DataError(
            f"{what} is text, or a list of text, with {shown(wrong)} in it; a grid of token ids is no table of text: "
            "`braid data convert --from stream-data` reads it"
        )
    return ["" if cell is None else str(cell) for cell in cells]


def _said(cells: Sequence[str]) -> list[tuple[int, str]]:
    """Row and text of the cells that are no silence, with a space before all but the first."""
    said: list[tuple[int, str]] = []
    for row, cell in enumerate(cells):
        if not _is_silent(cell):
            said.append((row, f" {cell}" if said and not cell[0].isspace() else cell))
    return said


def _is_silent(cell: str) -> bool:
    return cell.strip() in ("", "-")


def _after(
    row: int,
    stream: str,
    given: Sequence[str],
    voices: Sequence[str],
    columns: Mapping[str, Sequence[str]],
    *,
    is_last: bool,
) -> dict[str, int]:
    """What must have been read before a cell: the inputs up to its row, and what others said in the rows before."""
    after: dict[str, int] = {}
    for name in given:
        upto = len(columns[name]) if is_last else row + 1
        after[name] = sum(not _is_silent(cell) for cell in columns[name][:upto])
    for name in voices:
        if name != stream:
            after[name] = sum(not _is_silent(cell) for cell in columns[name][:row])
    return {name: count for name, count in after.items() if count}
