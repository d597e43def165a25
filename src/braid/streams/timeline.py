"""A transcript as a picture: an SVG with one band a lane, each token in its row, and marks where lives change.

The picture needs no script and no font of its own, follows the reader's light or dark setting, and says in its title
and description what it shows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from braid.streams.entries import Cell, LifeEvent, Row
from braid.streams.metrics import measure
from braid.streams.transcript import Transcript
from braid.streams.visible import cell_text, fit, num_cells

__all__ = ["timeline_svg"]

CHAR = 7.3  # width of a character of the 12-pixel monospaced text
PAD = 5  # inside a token's box
GAP = 3  # between boxes
BAND = 30  # height of a lane
BOX = 22  # height of a token
RULER = 24  # height of the line of row numbers
MARGIN = 20
HEAD = 40  # height of the title line
FOOT = 16  # height of the legend
MAX_CELL = 24  # characters of one token

NOT_XML = re.compile("[^\\t\\n\\x20-\\ud7ff\\ue000-\\ufffd\\U00010000-\\U0010ffff]")
MARKS = {
    "open": "▷",
    "prefill": "≡",
    "wake": "△",
    "sleep": "▽",
    "end": "■",
    "interrupt": "◆",
    "cancel": "✕",
    "force": "!",
    "flush": "≈",
    "close": "□",
    "turn": "↻",
}

STYLE = """
text { font: 12px ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace; fill: #1f2328 }
.back { fill: #ffffff } .band { fill: #f4f5f7 } .title { font-weight: 600; font-size: 14px }
.note, .ruler { fill: #656d76; font-size: 10px } .turn { stroke: #8c959f; stroke-dasharray: 3 3 }
.token { stroke-width: 1 } .forced { stroke-dasharray: 3 2 } .mark { fill: #57606a; font-size: 10px }
.input .token { fill: #dbeafe; stroke: #60a5fa } .input .name { fill: #1d4ed8 }
.internal .token { fill: #f3e8ff; stroke: #c084fc } .internal .name { fill: #7e22ce }
.external .token { fill: #d1fae5; stroke: #34d399 } .external .name { fill: #047857 }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 } .back { fill: #0d1117 } .band { fill: #161b22 } .note, .ruler, .mark { fill: #9198a1 }
  .input .token { fill: #172f57; stroke: #3b82f6 } .input .name { fill: #93c5fd }
  .internal .token { fill: #3b1d5e; stroke: #a855f7 } .internal .name { fill: #d8b4fe }
  .external .token { fill: #06402f; stroke: #10b981 } .external .name { fill: #6ee7b7 }
}
"""


@dataclass(frozen=True, slots=True)
class _Column:
    """One row of the transcript, as a column of the picture."""

    row: Row
    x: float
    width: float


def timeline_svg(
    transcript: Transcript,
    *,
    title: str | None = None,
    width: int = 1200,
    start: int = 0,
    stop: int | None = None,
) -> str:
    """Return the transcript as an SVG image.

    Args:
        transcript: what to show.
        title: the heading; the model's name where it is None.
        width: pixels; rows that do not fit go on in a new system of lanes below.
        start: first row time to show.
        stop: first row time not to show; None shows all.

    Returns:
        A standalone SVG document.
    """
    end = float("inf") if stop is None else stop
    rows = [row for row in transcript.rows if start <= row.t < end]
    events = [event for event in transcript.events if start <= event.t and (event.t < end or stop is None)]
    picture = _Picture(transcript, max(width, 320))
    systems = list(picture.systems(rows))
    height = HEAD + FOOT + max(len(systems), 1) * picture.system_height
    heading = title if title is not None else f"{transcript.model}: streams over time"
    size = f'viewBox="0 0 {picture.width} {height}" width="{picture.width}" height="{height}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-labelledby="braid-title braid-desc">',
        f'<title id="braid-title">{_text(heading)}</title>',
        f'<desc id="braid-desc">{_text(_description(transcript, rows))}</desc>',
        f"<style>{STYLE}</style>",
        f'<rect class="back" width="{picture.width}" height="{height}"/>',
        f'<text class="title" x="{MARGIN}" y="26">{_text(heading)}</text>',
        *picture.draw(systems, events),
        f'<text class="note" x="{MARGIN}" y="{height - 12}">{_text(_legend(events))}</text>',
        "</svg>\n",
    ]
    return "\n".join(parts)


class _Picture:
    """The layout of one transcript."""

    def __init__(self, transcript: Transcript, width: int) -> None:
        self.width = width
        self._lanes = [
            (lane.label, "input" if spec.is_input else spec.visibility)
            for lane in transcript.lanes.lanes
            for spec in [transcript.topology.streams[lane.stream]]
        ]
        self._names = {label: fit(label, 18) for label, _ in self._lanes}
        self._left = MARGIN + max(num_cells(name) for name in self._names.values()) * CHAR + 2 * PAD
        self.system_height = RULER + len(self._lanes) * BAND + MARGIN

    def systems(self, rows: Sequence[Row]) -> Iterator[list[_Column]]:
        """Return the rows in groups that fit the width, each row with its place."""
        columns: list[_Column] = []
        x = self._left
        for row in rows:
            needed = max(
                num_cells(fit(cell_text(cell.text, cell.token), MAX_CELL)) for cell in row.cells.values()
            )
            width = max(needed, len(str(row.t)) - 1) * CHAR + 2 * PAD
            if columns and x + width > self.width - MARGIN:
                yield columns
                columns, x = [], self._left
            columns.append(_Column(row, x, width))
            x += width + GAP
        if columns:
            yield columns

    def draw(self, systems: Sequence[Sequence[_Column]], events: Sequence[LifeEvent]) -> Iterator[str]:
        """Return the elements of all systems."""
        left = list(events)
        for index, columns in enumerate(systems or [[]]):
            top = HEAD + index * self.system_height
            is_last = index + 1 >= len(systems)
            here = [event for event in left if is_last or (columns and event.t <= columns[-1].row.t)]
            left = left[len(here) :]
            yield from self._draw_lanes(columns, top)
            yield from self._draw_events(columns, here, top)

    def _draw_lanes(self, columns: Sequence[_Column], top: float) -> Iterator[str]:
        for column in columns:
            x = column.x + column.width / 2
            yield f'<text class="ruler" x="{x:.1f}" y="{top + 14}" text-anchor="middle">{column.row.t}</text>'
        for index, (label, kind) in enumerate(self._lanes):
            y = top + RULER + index * BAND
            size = self.width - 2 * MARGIN + 2 * PAD
            yield f'<g class="{kind}">'
            yield f'<rect class="band" x="{MARGIN - PAD}" y="{y}" width="{size}" height="{BAND - 4}" rx="4"/>'
            yield f'<text class="name" x="{MARGIN}" y="{y + 17}">{_text(self._names[label])}</text>'
            for column in columns:
                if label in column.row.cells:
                    yield _token(column, column.row.cells[label], y + 2)
            yield "</g>"

    def _draw_events(
        self, columns: Sequence[_Column], events: Sequence[LifeEvent], top: float
    ) -> Iterator[str]:
        """Return marks at the left edge of the row before which each event takes effect."""
        order = {label: index for index, (label, _) in enumerate(self._lanes)}
        end = columns[-1].x + columns[-1].width + GAP if columns else self._left
        by_place: dict[tuple[float, int], list[LifeEvent]] = {}
        for event in events:
            x = next((column.x for column in columns if column.row.t >= event.t), end) - GAP / 2
            by_place.setdefault((x, order.get(event.lane or "", -1)), []).append(event)
        for (x, lane), found in by_place.items():
            if any(event.kind == "turn" for event in found):
                yield f'<path class="turn" d="M{x:.1f} {top + 18}v{len(self._lanes) * BAND + 4}"/>'
            y = top + RULER + (lane + 1) * BAND - 1
            signs = "".join(MARKS[event.kind] for event in found)
            told = _text("; ".join(map(_told, found)))
            mark = f'<text class="mark" x="{x:.1f}" y="{y}" text-anchor="middle">{_text(signs)}</text>'
            yield f"<g><title>{told}</title>{mark}</g>"


def _token(column: _Column, cell: Cell, y: float) -> str:
    text = fit(cell_text(cell.text, cell.token), MAX_CELL)
    style = "token forced" if cell.forced else "token"
    return (
        f"<g><title>t={column.row.t}, token {cell.token}{', forced' if cell.forced else ''}</title>"
        f'<rect class="{style}" x="{column.x:.1f}" y="{y}" width="{column.width:.1f}" height="{BOX}" rx="4"/>'
        f'<text x="{column.x + PAD:.1f}" y="{y + 15}">{_text(text)}</text></g>'
    )


def _told(event: LifeEvent) -> str:
    what = f"{event.lane} {event.kind}" if event.lane is not None else event.kind
    tokens = f", {len(event.tokens)} tokens" if event.tokens else ""
    return f"{what} before row {event.t}{tokens}" + (f" ({event.reason})" if event.reason else "")


def _legend(events: Sequence[LifeEvent]) -> str:
    """Return the signs in use, explained."""
    used = {event.kind for event in events}
    return ", ".join(f"{sign} {kind}" for kind, sign in MARKS.items() if kind in used)


def _description(transcript: Transcript, rows: Sequence[Row]) -> str:
    """Return in words what the picture shows."""
    metrics = measure(transcript)
    counts = ", ".join(f"{name} {count}" for name, count in metrics.tokens.items())
    waits = f" {metrics.tnft} rows between the last input token and the first answer token."
    return (
        f"{len(rows)} of {metrics.rows} rows. Tokens by stream: {counts}."
        f"{'' if metrics.tnft is None else waits}"
    )


def _text(text: str) -> str:
    return escape(NOT_XML.sub("\ufffd", text))
