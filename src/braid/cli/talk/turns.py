"""A conversation as it is shown: events folded into turns, states of streams, and figures.

What was sent and what was read are kept apart. A turn can be over before the last words that were sent to it have been
read; those words are the beginning of the next turn, and only the order of events tells which they were:

    sent  "Why is the sky blue?" ⏎ "and at night?"
    rows   ├── read ────────────┤    ├ read ┤      ■ turn      ├ read ┤
    shown  turn 1: the question, and the aside "and"           turn 2: "at night?"
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from braid.streams.events import (
    ClosedEvent,
    DeltaEvent,
    ErrorEvent,
    Event,
    Reuse,
    RowEvent,
    StateEvent,
    TurnEvent,
)
from braid.streams.lanes import LaneTable

__all__ = ["Aside", "Kind", "Spoken", "TalkState", "Turn"]

Kind = Literal["input", "inner", "answer"]
"""What a lane is for the one who talks: theirs to fill, an aside, or what they are told."""

_WORDS = {
    ("input", "active"): "reading",
    ("input", "asleep"): "ended",
    ("output", "active"): "speaking",
    ("output", "asleep"): "done",
}


@dataclass
class Spoken:
    """What an output has said in one turn."""

    num_tokens: int = 0
    _of_rows: str = ""
    _of_deltas: str = ""

    @property
    def text(self) -> str:
        """All of it. Rows come first, deltas have the text that is held back until the stream falls asleep."""
        return max(self._of_rows, self._of_deltas, key=len)

    def add_token(self, text: str) -> None:
        """A token of a row."""
        self.num_tokens += 1
        self._of_rows += text

    def add_delta(self, text: str) -> None:
        """The text of a delta."""
        self._of_deltas += text


@dataclass
class Aside:
    """A line that came while the model spoke."""

    start: int
    """Where in the turn's `said` it begins."""
    heard_at: int | None = None
    """How many characters the answer had when its first word was read."""


@dataclass
class Turn:
    """A question, what came in between, and the answers."""

    number: int
    """From 1."""
    said: str = ""
    """All that was sent."""
    num_read: int = 0
    """Characters of it that have been read."""
    asides: list[Aside] = field(default_factory=list[Aside])
    outputs: dict[str, Spoken] = field(default_factory=dict[str, Spoken])
    """By lane, in the order in which they first spoke."""
    entered_at: float | None = None
    """When the question was complete, in seconds of the clock."""
    first_answer_at: float | None = None
    completed_at: float | None = None
    """When the last line was complete; None while one is being typed."""
    rows_alone: int = 0
    """Rows since the last one with input, once the question was complete."""
    is_over: bool = False
    reuse: Reuse | None = None
    """What was read and drafted ahead of Enter, once the turn is over."""
    version: int = 0
    """Grows with every change, so that what has not changed need not be drawn again."""

    @property
    def lines(self) -> list[tuple[int, int]]:
        """Where the question, and then each aside, begins and stops in `said`."""
        starts = [0, *(aside.start for aside in self.asides)]
        return list(zip(starts, [*starts[1:], len(self.said)], strict=True))

    @property
    def seconds_to_answer(self) -> float | None:
        """Seconds from the end of the question to the first answer token; 0 for an answer that came before it."""
        if self.entered_at is None or self.first_answer_at is None:
            return None
        return max(0.0, self.first_answer_at - self.entered_at)


class TalkState:
    """All that a view shows of one conversation.

    Args:
        table: The lanes.
        main: The input that the person speaks in.
        clock: Seconds; only differences count.
    """

    def __init__(
        self, table: LaneTable, main: str, *, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self.main = main
        self.turns: list[Turn] = []
        self.kinds: dict[str, Kind] = {}
        for lane in table.lanes:
            spec = table.spec(lane.index)
            inner: Kind = "inner" if spec.visibility == "internal" else "answer"
            self.kinds[lane.label] = "input" if spec.is_input else inner
        self.states = dict.fromkeys(self.kinds, "created")
        self.num_rows = 0
        self.error: ErrorEvent | None = None
        """What ended the conversation from inside."""
        self.is_closed = False
        self._clock = clock
        self._gaps: deque[float] = deque(maxlen=32)
        """Seconds from row to row while a stream speaks."""
        self._last_row_at: float | None = None

    # ---- asking

    @property
    def open_turn(self) -> Turn | None:
        """The turn under way."""
        return self.turns[-1] if self.turns and not self.turns[-1].is_over else None

    @property
    def speaking(self) -> list[str]:
        """The outputs that are awake."""
        return [label for label in self.kinds if self.kinds[label] != "input" and self.is_active(label)]

    @property
    def rows_per_s(self) -> float | None:
        """Rows a second, lately, while something was said."""
        total = sum(self._gaps)
        return len(self._gaps) / total if total > 0 else None

    @property
    def seconds_to_answer(self) -> float | None:
        """Of the last turn that has an answer."""
        found = (turn.seconds_to_answer for turn in reversed(self.turns))
        return next((seconds for seconds in found if seconds is not None), None)

    def is_active(self, label: str) -> bool:
        """Whether the lane reads or speaks."""
        return self.states[label] == "active"

    def word(self, label: str) -> str:
        """The state of a lane in a word."""
        state = self.states[label]
        direction = "input" if self.kinds[label] == "input" else "output"
        return "waiting" if state == "created" else _WORDS.get((direction, state), state)

    # ---- what the person does

    def sent(self, text: str, *, is_aside: bool = False) -> None:
        """Words are on their way to the model.

        Args:
            text: The words, with the space before them.
            is_aside: Whether they begin a line that comes while the model speaks.
        """
        turn = self._turn()
        if is_aside:
            turn.asides.append(Aside(len(turn.said)))
        turn.said += text
        turn.completed_at = None
        turn.version += 1

    def withdrawn(self, text: str) -> None:
        """The last words that were sent did not arrive."""
        turn = self._turn()
        turn.said = turn.said.removesuffix(text)
        turn.asides = [aside for aside in turn.asides if aside.start < len(turn.said)]
        turn.version += 1
        if not turn.said and not turn.outputs:
            self.turns.remove(turn)

    def entered(self) -> None:
        """A line is complete."""
        turn = self._turn()
        turn.completed_at = self._clock()
        turn.entered_at = turn.entered_at or turn.completed_at
        turn.version += 1

    # ---- what the session says

    def saw(self, event: Event) -> None:
        """Take what has happened; kinds of events that are not known here change nothing."""
        if isinstance(event, RowEvent):
            self._add_row(event)
        elif isinstance(event, DeltaEvent):
            turn = self._turn()
            turn.outputs.setdefault(event.stream, Spoken()).add_delta(event.text)
            turn.version += 1
        elif isinstance(event, StateEvent):
            self.states[event.stream] = event.state
            if self.turns:
                self.turns[-1].version += 1
        elif isinstance(event, TurnEvent):
            self._turn().reuse = event.reuse
            self._end_turn()
        elif isinstance(event, ErrorEvent):
            self.error = event
        elif isinstance(event, ClosedEvent):
            self._close()

    def _turn(self) -> Turn:
        """The turn under way, or a new one."""
        if self.open_turn is None:
            self.turns.append(Turn(len(self.turns) + 1))
        return self.turns[-1]

    def _add_row(self, row: RowEvent) -> None:
        turn, now = self._turn(), self._clock()
        speaks = False
        for label, cell in row.cells.items():
            if self.kinds[label] == "input":
                continue
            speaks = True
            turn.outputs.setdefault(label, Spoken()).add_token(cell.text)
            if self.kinds[label] == "answer" and not cell.forced and turn.first_answer_at is None:
                turn.first_answer_at = now
        if self.main in row.cells:
            self._read(turn, row.cells[self.main].text)
        is_alone = turn.entered_at is not None and self.main not in row.cells
        turn.rows_alone = turn.rows_alone + 1 if is_alone else 0
        turn.version += 1
        self.num_rows += 1
        if speaks and self._last_row_at is not None:
            self._gaps.append(now - self._last_row_at)
        self._last_row_at = now if speaks else None

    def _read(self, turn: Turn, text: str) -> None:
        turn.num_read += len(text)
        for aside in turn.asides:
            if aside.heard_at is None and turn.num_read > aside.start:
                answers = (said for label, said in turn.outputs.items() if self.kinds[label] == "answer")
                aside.heard_at = next((len(said.text) for said in answers), 0)

    def _end_turn(self) -> None:
        """What was sent and not read begins the next turn."""
        turn = self._turn()
        turn.is_over = True
        turn.version += 1
        rest, turn.said = turn.said[turn.num_read :], turn.said[: turn.num_read]
        turn.asides = [aside for aside in turn.asides if aside.start < len(turn.said)]
        if rest.strip():
            self.turns.append(
                Turn(turn.number + 1, said=rest, entered_at=turn.completed_at, completed_at=turn.completed_at)
            )

    def _close(self) -> None:
        self.is_closed = True
        for label, state in self.states.items():
            self.states[label] = "stopped" if state == "active" else state
        if self.turns:
            self.turns[-1].version += 1
