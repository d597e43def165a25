"""What a session tells the world: its transcript, and the events that clients see."""

from __future__ import annotations

from collections.abc import Mapping

from braid.engine.lanes import OutputLane
from braid.streams.entries import Cell, LifeEvent, LifeKind, Row
from braid.streams.events import (
    CellData,
    ClosedEvent,
    Event,
    NoticeEvent,
    QuiescentEvent,
    RowEvent,
    StateEvent,
    StreamState,
    TurnEvent,
)
from braid.streams.transcript import Transcript

__all__ = ["Record"]


class Record:
    """Writes the transcript and queues events, in one place so that the two cannot disagree.

    Args:
        transcript: The canonical record; rows and life-cycle events are appended.
    """

    def __init__(self, transcript: Transcript) -> None:
        self.transcript = transcript
        self.t = 0
        """The next row; events take effect before it."""
        self._events: list[Event] = []

    def take(self) -> list[Event]:
        """The events since the last call."""
        events, self._events = self._events, []
        return events

    def row(self, cells: Mapping[str, Cell]) -> None:
        """The next row, whose tokens are decided; its forward comes next."""
        t, self.t = self.t, self.t + 1
        self.transcript.append(Row(t, dict(cells)))
        shown = {
            label: CellData(token=cell.token, text=cell.text, forced=cell.forced)
            for label, cell in cells.items()
        }
        self._events.append(RowEvent(t=t, cells=shown))

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
        delta = lane.deltas.push(t, cell.token, cell.text)
        if delta is not None:
            self._events.append(delta)

    def send(self, lane: OutputLane, tail: str = "") -> None:
        """What an output has said and clients have not seen, and the text that it held back."""
        delta = lane.deltas.flush(tail)
        if delta is not None:
            self._events.append(delta)

    def state(self, stream: str, state: StreamState, reason: str = "") -> None:
        """A stream's change of state."""
        self._events.append(StateEvent(t=self.t, stream=stream, state=state, reason=reason))

    def notice(self, code: str, message: str, stream: str | None = None) -> None:
        """Something that a person may want to know."""
        self._events.append(NoticeEvent(t=self.t, stream=stream, code=code, message=message))

    def quiescent(self) -> None:
        """Input has ended and every awake output is silent."""
        self._events.append(QuiescentEvent(t=self.t))

    def turn(self, turn: int) -> None:
        """A turn is over."""
        self.life("turn")
        self._events.append(TurnEvent(t=self.t, turn=turn))

    def closed(self, reason: str) -> None:
        """The session is closed."""
        self._events.append(ClosedEvent(t=self.t, reason=reason))
