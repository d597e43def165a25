"""What a session tells the world: its transcript, and the events that clients see."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from braid.engine.session.lanes import OutputLane
from braid.streams.entries import Cell, LifeEvent, LifeKind, Row
from braid.streams.events import (
    CellData,
    ClosedEvent,
    ErrorEvent,
    Event,
    NoticeEvent,
    QuiescentEvent,
    Reuse,
    RowEvent,
    StateEvent,
    StreamState,
    TurnEvent,
)
from braid.streams.transcript import Transcript

__all__ = ["LedgerLine", "News", "Record", "as_event"]


@dataclass(frozen=True, slots=True)
class LedgerLine:
    """A line of a session's ledger, for whoever keeps it; clients never see it."""

    line: list[Any]


News = Event | Row | LedgerLine
"""An event; or a row, which becomes one when somebody wants to see it; or a line of the ledger."""


def as_event(news: Event | Row) -> Event:
    """The event that a client sees."""
    if not isinstance(news, Row):
        return news
    cells = {
        label: CellData(token=cell.token, text=cell.text, forced=cell.forced)
        for label, cell in news.cells.items()
    }
    return RowEvent(t=news.t, cells=cells)


class Record:
    """Writes the transcript and queues events, in one place so that the two cannot disagree.

    Args:
        transcript: The canonical record; rows and life-cycle events are appended.
    """

    def __init__(self, transcript: Transcript) -> None:
        self.transcript = transcript
        self.t = 0
        """The next row; events take effect before it."""
        self._news: list[News] = []
        self._held_from: int | None = None
        """How much of the news was there before it was held; None while nothing is held."""

    def fork(self) -> Record:
        """A second record with the same past, and no news yet."""
        twin = Record(self.transcript.copy())
        twin.t = self.t
        return twin

    @property
    def has_news(self) -> bool:
        """Whether anything has happened since the last `take`."""
        return bool(self._news) and self._held_from != 0

    def take(self) -> list[News]:
        """What has happened since the last call; what is held stays."""
        count = len(self._news) if self._held_from is None else self._held_from
        news, self._news = self._news[:count], self._news[count:]
        self._held_from = None if self._held_from is None else 0
        return news

    def hold(self) -> None:
        """Keep what happens from now on back until `release`; `rewrite` may change it before."""
        if self._held_from is None:
            self._held_from = len(self._news)

    @property
    def is_held(self) -> bool:
        """Whether what happens is kept back."""
        return self._held_from is not None

    def release(self) -> None:
        """Let go of what was held."""
        self._held_from = None

    def rewrite(self, other: Record) -> None:
        """In the place of all that is held stands what happened to another record, which began where holding began."""
        assert self._held_from is not None, "only what is held can be rewritten"
        self.transcript, self.t = other.transcript, other.t
        self._news[self._held_from :] = other._news

    def mark(self) -> tuple[int, int]:
        """How much there is now: of news that nobody has taken, and of the transcript."""
        return len(self._news), len(self.transcript.entries)

    def mark_heard(self) -> tuple[int, int]:
        """As `mark`, but before what is held."""
        return len(self._news) if self._held_from is None else self._held_from, len(self.transcript.entries)

    def insert_before_held(self, line: LedgerLine) -> None:
        """Put a line of the ledger before all that is held."""
        place = len(self._news) if self._held_from is None else self._held_from
        self._news.insert(place, line)
        self._held_from = None if self._held_from is None else place + 1

    def insert(self, mark: tuple[int, int], line: LedgerLine) -> None:
        """Put a line of the ledger before all news since the mark."""
        self._news.insert(mark[0], line)

    def row(self, cells: Mapping[str, Cell]) -> None:
        """The next row, whose tokens are decided; its forward comes next."""
        row = Row(self.t, cells)
        self.t += 1
        self.transcript.append(row)
        self._news.append(row)

    def life(
        self,
        kind: LifeKind,
        lane: str | None = None,
        *,
        tokens: tuple[int, ...] = (),
        text: str = "",
        reason: str = "",
    ) -> None:
        """A life-cycle event; it takes effect before the next row."""
        self.transcript.append(
            LifeEvent(t=self.t, kind=kind, lane=lane, tokens=tokens, text=text, reason=reason)
        )

    def said(self, t: int, lane: OutputLane, cell: Cell) -> None:
        """An output has said a token; its text is sent when the chunk is full."""
        odds, lane.odds = lane.odds, None
        delta = lane.deltas.push(t, cell.token, cell.text, None if cell.forced else odds)
        if delta is not None:
            self._news.append(delta)

    def send(self, lane: OutputLane, tail: str = "") -> None:
        """What an output has said and clients have not seen, and the text that it held back."""
        delta = lane.deltas.flush(tail)
        if delta is not None:
            self._news.append(delta)

    def state(self, stream: str, state: StreamState, reason: str = "") -> None:
        """A stream's change of state."""
        self._news.append(StateEvent(t=self.t, stream=stream, state=state, reason=reason))

    def notice(self, code: str, message: str, stream: str | None = None) -> None:
        """Something that a person may want to know."""
        self._news.append(NoticeEvent(t=self.t, stream=stream, code=code, message=message))

    def error(self, code: str, message: str) -> None:
        """What ends the session from inside."""
        self._news.append(ErrorEvent(code=code, message=message))

    def quiescent(self) -> None:
        """Input has ended and every awake output is silent."""
        self._news.append(QuiescentEvent(t=self.t))

    def turn(self, turn: int, reuse: Reuse | None = None) -> None:
        """A turn is over."""
        self.life("turn")
        self._news.append(TurnEvent(t=self.t, turn=turn, reuse=reuse))

    def closed(self, reason: str) -> None:
        """The session is closed."""
        self._news.append(ClosedEvent(t=self.t, reason=reason))
