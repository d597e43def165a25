"""A run as plain text, for pipes and logs.

The answer goes to standard output, and nothing else does, so that `braid run … > answer.txt` does what it says. What
the other streams say goes to standard error, line by line with the stream's name, and the figures after it.
"""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Self, TextIO

from braid.cli.show.figures import ending, kept, summary_lines
from braid.cli.show.wrapping import Wrapped
from braid.sessions.live import LiveResult
from braid.streams.events import ClosedEvent, Event, RowEvent, StateEvent, TurnEvent
from braid.streams.lanes import LaneTable

__all__ = ["PlainText"]

_WIDTH = 88


class PlainText:
    """Writes whole lines as they are complete, so that the two outputs can share a screen.

    Args:
        table: The lanes.
        out: For the answer. Where several streams answer, lines begin with the stream's name.
        err: For all else.
    """

    def __init__(self, table: LaneTable, out: TextIO, err: TextIO) -> None:
        self._out, self._err = out, err
        specs = {lane.label: table.spec(lane.index) for lane in table.lanes}
        self._answers = {
            label: "" for label, spec in specs.items() if spec.is_output and spec.visibility == "external"
        }
        """Of each answering lane, the line that is not complete."""
        self._asides = {label: Wrapped(_WIDTH) for label in specs if label not in self._answers}
        self._ended: set[str] = set()
        """Inputs that have ended; their last line is complete when a row comes without them."""
        self._inputs = {label for label, spec in specs.items() if spec.is_input}
        self._indent = max(len(label) for label in specs)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._flush(*self._asides, *self._answers)

    def on_event(self, event: Event) -> None:
        """Gather text, and write the lines that are complete."""
        if isinstance(event, RowEvent):
            self._flush(*(label for label in self._ended if label not in event.cells))
            for label, cell in event.cells.items():
                self._say(label, cell.text)
        elif isinstance(event, StateEvent) and event.state == "asleep":
            if event.stream in self._inputs:
                self._ended.add(event.stream)
            else:
                self._flush(event.stream)
        elif isinstance(event, TurnEvent | ClosedEvent):
            self._flush(*self._asides, *self._answers)

    def finish(self, outcome: LiveResult, saved: Path | None) -> None:
        """Figures go to standard error."""
        self._out.flush()
        for line in ["", *summary_lines(outcome.summary), ending(outcome), kept(saved)]:
            if line is not None:
                self._err.write(line + "\n")
        self._err.flush()

    def _say(self, label: str, text: str) -> None:
        if label in self._answers:
            *lines, self._answers[label] = (self._answers[label] + text).split("\n")
            self._answer(label, lines)
        else:
            self._asides[label].add(text)
            self._tell(label, self._asides[label].take())

    def _flush(self, *labels: str) -> None:
        """Write the last line of lanes, complete or not."""
        for label in labels:
            if label in self._asides:
                self._tell(label, self._asides[label].take(all_of_it=True))
            elif self._answers[label]:
                self._answer(label, [self._answers[label]])
                self._answers[label] = ""

    def _answer(self, label: str, lines: list[str]) -> None:
        name = f"{label}: " if len(self._answers) > 1 else ""
        self._out.writelines(f"{name}{line}\n" for line in lines)
        self._out.flush()

    def _tell(self, label: str, lines: list[str]) -> None:
        self._err.writelines(f"{label:<{self._indent}} │ {line}\n" for line in lines)
        self._err.flush()
