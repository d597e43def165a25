"""A transcript as a grid for the terminal: a line a lane, time from left to right, in blocks as wide as the screen.

t        0    1      2       3      4
user     How  ·many  ·apples ·?
thought              12      ·+5    ·=
output                              ·There
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from braid.streams.entries import LifeEvent, Row
from braid.streams.transcript import Transcript
from braid.streams.visible import cell_text, fit, num_cells

__all__ = ["render_grid"]

MIN_WIDTH = 32
MAX_CELL = 20
STYLES = {"input": "cyan", "internal": "magenta", "external": "bold green", "forced": "dim", "frame": "dim"}

Block = tuple[list[Row], list[int]]  # rows, and the width of each


def render_grid(transcript: Transcript, width: int = 100, *, color: bool = False) -> str:
    """Return the transcript as lines of text.

    Args:
        transcript: what to show. Silence is blank, a space is `·`, and a token without text shows its id.
        width: columns of the screen; at least 32 are used.
        color: whether to colour with ANSI escapes: inputs, internal and external outputs, and forced tokens.

    Returns:
        Lines of at most `width` columns; events stand below the block of rows that they precede.
    """
    grid = _Grid(transcript, max(width, MIN_WIDTH), color)
    return "\n".join(line.rstrip() for line in grid.lines())


class _Grid:
    """The layout of one transcript."""

    def __init__(self, transcript: Transcript, width: int, color: bool) -> None:
        self._transcript = transcript
        self._width = width
        self._color = color
        labels = [lane.label for lane in transcript.lanes.lanes]
        self._label_width = min(max(map(num_cells, ["t", *labels])), width // 3)
        self._classes = {
            lane.label: "input" if spec.is_input else spec.visibility
            for lane in transcript.lanes.lanes
            for spec in [transcript.topology.streams[lane.stream]]
        }

    def lines(self) -> Iterator[str]:
        """Return all lines, block by block."""
        events, told = self._transcript.events, 0
        for number, (rows, widths) in enumerate(self._blocks()):
            if number:
                yield ""
            yield self._line("t", [str(row.t) for row in rows], widths, "frame", ["frame"] * len(rows))
            for label, kind in self._classes.items():
                found = [row.cells.get(label) for row in rows]
                texts = ["" if cell is None else cell_text(cell.text, cell.token) for cell in found]
                kinds = ["forced" if cell is not None and cell.forced else kind for cell in found]
                yield self._line(label, texts, widths, kind, kinds)
            stop = next((i for i in range(told, len(events)) if events[i].t > rows[-1].t), len(events))
            yield from self._event_lines(events[told:stop])
            told = stop
        yield from self._event_lines(events[told:])

    def _blocks(self) -> Iterator[Block]:
        """Return the rows in groups that fit the screen."""
        room = self._width - self._label_width
        rows: list[Row] = []
        widths: list[int] = []
        for row in self._transcript.rows:
            texts = [str(row.t), *(cell_text(cell.text, cell.token) for cell in row.cells.values())]
            needed = min(max(map(num_cells, texts)), MAX_CELL, room - 1)
            if rows and sum(widths) + len(widths) + needed + 1 > room:
                yield rows, widths
                rows, widths = [], []
            rows.append(row)
            widths.append(needed)
        if rows:
            yield rows, widths

    def _line(self, label: str, texts: list[str], widths: list[int], style: str, styles: list[str]) -> str:
        parts = [self._paint(_padded(label, self._label_width), style)]
        parts += [
            self._paint(_padded(text, size), kind)
            for text, size, kind in zip(texts, widths, styles, strict=True)
        ]
        return " ".join(parts)

    def _event_lines(self, events: Sequence[LifeEvent]) -> Iterator[str]:
        for event in events:
            what = f"{event.lane} {event.kind}" if event.lane is not None else event.kind
            tokens = f", {len(event.tokens)} tokens" if event.tokens else ""
            reason = f" ({cell_text(event.reason, 0).replace('·', ' ')})" if event.reason else ""
            text = fit(f"  before {event.t}: {what}{tokens}{reason}", self._width)
            yield self._paint(text, "frame")

    def _paint(self, text: str, style: str) -> str:
        if not self._color or not text.strip():
            return text
        from rich.style import Style

        return Style.parse(STYLES[style]).render(text)


def _padded(text: str, width: int) -> str:
    text = fit(text, width)
    return text + " " * (width - num_cells(text))
