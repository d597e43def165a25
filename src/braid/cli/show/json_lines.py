"""A run as JSON: an event a line, the summary last."""

from __future__ import annotations

import sys
from pathlib import Path
from types import TracebackType
from typing import Self, TextIO

from braid.cli.show.figures import ending, kept
from braid.sessions.live import LiveResult
from braid.streams.events import Event

__all__ = ["JsonLines"]

_LINE_ENDS = {ord(char): f"\\u{ord(char):04x}" for char in "\x85\u2028\u2029"}
"""What JSON allows in strings, and some programs take for the end of a line."""


class JsonLines:
    """Writes events as they happen.

    Args:
        out: Where to; what is for people goes to standard error.
    """

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def on_event(self, event: Event) -> None:
        """Write it at once."""
        self._out.write(event.to_json().translate(_LINE_ENDS) + "\n")
        self._out.flush()

    def finish(self, outcome: LiveResult, saved: Path | None) -> None:
        """The summary is the last line."""
        self.on_event(outcome.summary)
        for note in (ending(outcome), kept(saved)):
            if note is not None:
                print(note, file=sys.stderr)
