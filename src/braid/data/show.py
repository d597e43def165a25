"""An example as a grid for the terminal, and its figures."""

from __future__ import annotations

from braid.data.row_table import RowTable
from braid.data.tokens import DataTokenizer
from braid.streams.render import render_grid
from braid.streams.topology import Topology
from braid.streams.transcript import Cell, Row, Transcript

__all__ = ["render_table", "text_of", "to_transcript"]


def render_table(
    table: RowTable, tokenizer: DataTokenizer | None = None, width: int = 100, *, color: bool = False
) -> str:
    """A row table as lines of text: the grid of its streams, then when each output is asked.

    Args:
        table: What to show.
        tokenizer: Of its ids; without one they are shown as numbers.
        width: Columns of the screen.
        color: Whether to colour with ANSI escapes.
    """
    lines = [render_grid(to_transcript(table, tokenizer), width, color=color), ""]
    for lane in table.lanes:
        if lane.asked:
            ranges = ", ".join(
                f"{start}–{stop - 1}" if stop - start > 1 else f"{start}" for start, stop in lane.asked
            )
            weight = "" if lane.weight == 1 else f", weight {lane.weight:g}"
            lines.append(f"{lane.stream} is asked in rows {ranges}{weight}")
    return "\n".join(lines)


def to_transcript(table: RowTable, tokenizer: DataTokenizer | None = None) -> Transcript:
    """A row table as a transcript, as far as one can tell: a stream that is never asked is an input.

    Raises:
        TopologyError: A stream has a name that no topology can have.
        TranscriptError: The table is faulty; `braid.data.check` says how.
    """
    streams = {
        lane.stream: {"direction": "output" if lane.asked or lane.weight else "input"} for lane in table.lanes
    }
    cells: dict[int, dict[str, Cell]] = {}
    for lane in table.lanes:
        for row, token in zip(lane.rows, lane.ids, strict=True):
            is_forced = bool(lane.asked) and not lane.is_asked_in(row - 1)
            cells.setdefault(row, {})[lane.stream] = Cell(token, text_of(token, tokenizer), is_forced)
    rows = [Row(t, cells[t]) for t in sorted(cells)]
    return Transcript(Topology.from_dict({"streams": streams}), table.id, entries=rows)


def text_of(token: int, tokenizer: DataTokenizer | None) -> str:
    """What a token adds to the text; of a special one its name, of one that is unknown nothing."""
    if tokenizer is None:
        return ""
    return tokenizer.decode([token]) or tokenizer.tokenizer.id_to_token(token) or ""
