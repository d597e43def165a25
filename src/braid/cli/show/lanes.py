"""A run in the terminal: a lane a stream, growing as rows come.

    ● user     reading    ━━━━━━╸  ╺━━━━━━━
      Sally has 3 apples and buys 4 more.

    ● thought  speaking      ━━━━━━━━━━━━━━
      She has 3 apples at first
    ─────────────────────────────────────────
    24 rows · 31 ms a row · 92 tokens cached

The strip behind a stream's name is time: marked where the stream has a token. All strips share one clock, so that
streams which advance together are seen to.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from braid.cli.show.figures import count, ending, kept, summary_lines
from braid.cli.show.wrapping import Wrapped
from braid.sessions.live import LiveResult
from braid.sessions.session import Session
from braid.streams.events import ClosedEvent, Event, RowEvent, StateEvent
from braid.streams.lanes import Lane
from braid.streams.stream_spec import StreamSpec

__all__ = ["LiveLanes", "strip"]

_MAX_WIDTH = 110
_INPUT, _INTERNAL = "cyan", "magenta"
_EXTERNAL = "green"
_WORDS = {
    ("input", "active"): "reading",
    ("input", "asleep"): "ended",
    ("output", "active"): "speaking",
    ("output", "asleep"): "done",
}


class LiveLanes:
    """Draws the lanes again and again while they grow, and once more, whole, at the end.

    Args:
        session: Whose streams.
        console: The terminal.
    """

    def __init__(self, session: Session, console: Console) -> None:
        self._session = session
        self._console = console
        self._lock = threading.Lock()  # the picture is drawn by a thread of its own
        table = session.lanes
        width = self._width - 2
        self._lanes = {lane.label: _Lane(lane, table.spec(lane.index), width) for lane in table.lanes}
        self._num_rows = 0
        self._gaps: deque[float] = deque(maxlen=32)
        """Seconds from row to row while a stream speaks."""
        self._last_row_at: float | None = None
        self._began = time.perf_counter()
        self._summary: list[str] = []
        self._kv_tokens = 0
        self._is_last = False
        """Whether the picture is the one that stays."""
        self._live = Live(
            console=console, get_renderable=self._draw, refresh_per_second=12, vertical_overflow="crop"
        )

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live.is_started:
            self._stop()

    def on_event(self, event: Event) -> None:
        """Let the lanes grow."""
        with self._lock:
            if isinstance(event, RowEvent):
                self._add_row(event)
            elif isinstance(event, StateEvent):
                self._lanes[event.stream].state = event.state
            elif isinstance(event, ClosedEvent):
                for lane in self._lanes.values():
                    lane.state = "stopped" if lane.state == "active" else lane.state
                return
            self._kv_tokens = self._session.kv_tokens

    def finish(self, outcome: LiveResult, saved: Path | None) -> None:
        """The last picture has all the text, and the figures below."""
        self._summary = summary_lines(outcome.summary, self._ms_per_row)
        self._stop()
        for note, style in ((ending(outcome), "yellow"), (kept(saved), "dim")):
            if note is not None:
                self._console.print(Text(note, style=style))

    def _stop(self) -> None:
        self._live.vertical_overflow = "visible"
        self._is_last = True
        self._live.stop()

    @property
    def _width(self) -> int:
        return min(self._console.width, _MAX_WIDTH)

    @property
    def _ms_per_row(self) -> float | None:
        return 1000 * sum(self._gaps) / len(self._gaps) if self._gaps else None

    def _add_row(self, row: RowEvent) -> None:
        now = time.perf_counter()
        for label, cell in row.cells.items():
            self._lanes[label].add(self._num_rows, cell.text)
        speaks = any(not self._lanes[label].spec.is_input for label in row.cells)
        if speaks and self._last_row_at is not None:
            self._gaps.append(now - self._last_row_at)
        self._last_row_at = now if speaks else None
        self._num_rows += 1

    def _draw(self) -> Group:
        """The picture, as it fits into the window."""
        with self._lock:
            lanes = list(self._lanes.values())
            texts = [lane.wrap(self._width - 2) for lane in lanes]
            room = max(self._console.height - 3 - 2 * len(lanes), len(lanes))
            heights = (
                [len(text) for text in texts]
                if self._is_last
                else _share(room, [len(text) for text in texts])
            )
            parts: list[Text] = []
            names = max(len(lane.label) for lane in lanes)
            for lane, text, height in zip(lanes, texts, heights, strict=True):
                parts.append(lane.head(names, self._num_rows, self._width))
                parts += lane.body(text, height)
                parts.append(Text())
            parts += self._foot()
            return Group(*parts)

    def _foot(self) -> Iterator[Text]:
        if self._summary:
            yield from (Text(line, style="dim") for line in self._summary)
            return
        speed = "" if self._ms_per_row is None else f" · {self._ms_per_row:.0f} ms a row"
        rows, tokens = count(self._num_rows, "row"), count(self._kv_tokens, "token")
        figures = f"{rows}{speed} · {tokens} cached · {time.perf_counter() - self._began:.1f} s"
        yield Text(figures, style="dim", no_wrap=True, overflow="ellipsis")


class _Lane:
    """One stream as it is drawn."""

    def __init__(self, lane: Lane, spec: StreamSpec, width: int) -> None:
        self.label = lane.label
        self.spec = spec
        self.state = "created"
        self.color = _INPUT if spec.is_input else _EXTERNAL if spec.visibility == "external" else _INTERNAL
        self._pieces: list[str] = []
        self._rows: list[int] = []
        self._wrapped = Wrapped(width)

    def add(self, row: int, text: str) -> None:
        """A token."""
        self._rows.append(row)
        self._pieces.append(text)
        self._wrapped.add(text)

    def wrap(self, width: int) -> list[str]:
        """The text in lines; broken anew only when the window was resized."""
        if width != self._wrapped.width:
            self._wrapped = Wrapped(width)
            self._wrapped.add("".join(self._pieces))
        return self._wrapped.lines

    def head(self, names: int, num_rows: int, width: int) -> Text:
        """Name, state, and when the stream had tokens."""
        is_active = self.state == "active"
        word = _WORDS.get(
            (self.spec.direction, self.state), "waiting" if self.state == "created" else self.state
        )
        head = Text(no_wrap=True, overflow="crop")
        head.append("● " if is_active else "○ ", style=self.color)
        head.append(f"{self.label:<{names}}  ", style=f"bold {self.color}")
        head.append(f"{word:<10}", style="default" if is_active else "dim")
        head.append(strip(self._rows, num_rows, width - names - 14), style=self.color)
        return head

    def body(self, lines: list[str], height: int) -> Iterator[Text]:
        """The last lines of the text, as many as there is room for."""
        shown = lines[-height:] if height else []
        for number, line in enumerate(shown):
            is_cut = number == 0 and len(shown) < len(lines)
            text = Text("… " if is_cut else "  ", no_wrap=True, overflow="crop")
            text.append(line)
            if number == len(shown) - 1 and self.state == "active" and not self.spec.is_input:
                text.append("▍", style=self.color)
            yield text


def strip(rows: list[int], num_rows: int, width: int) -> str:
    """A line of time with marks where a stream has a token; rows share a column where there are many.

    >>> strip([0, 1, 4], 6, 10), strip([0, 1, 4], 6, 3)
    ('━━  ━ ', '━ ━')
    """
    per_column = max(1, -(-num_rows // max(width, 1)))
    marked = {row // per_column for row in rows}
    return "".join("━" if column in marked else " " for column in range(-(-num_rows // per_column)))


def _share(room: int, wanted: list[int]) -> list[int]:
    """Lines for each lane: what it wants if there is room for all, else the same for all that want more.

    >>> _share(10, [2, 3, 4]), _share(10, [2, 9, 9])
    ([2, 3, 4], [2, 4, 4])
    """
    given = [0] * len(wanted)
    while room > 0 and given != wanted:
        for index, want in enumerate(wanted):
            if given[index] < want and room > 0:
                given[index] += 1
                room -= 1
    return given
