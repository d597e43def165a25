"""How a live run is shown: lanes in a terminal, plain text elsewhere, JSON for programs."""

from __future__ import annotations

import sys
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from braid.sessions.live import LiveResult
from braid.sessions.session import Session
from braid.streams.events import Event

__all__ = ["Show", "choose_show"]


class Show(Protocol):
    """One way to show a run; entered before it starts."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def on_event(self, event: Event) -> None:
        """Take what has happened."""
        ...

    def finish(self, outcome: LiveResult, saved: Path | None) -> None:
        """Show the figures of a run that is over, and where its transcript is."""
        ...


def choose_show(session: Session, *, as_json: bool) -> Show:
    """The way that suits where the output goes."""
    if as_json:
        from braid.cli.show.json_lines import JsonLines

        return JsonLines(sys.stdout)
    from rich.console import Console

    console = Console(highlight=False)
    if console.is_terminal and not console.is_dumb_terminal:
        from braid.cli.show.lanes import LiveLanes

        return LiveLanes(session, console)
    from braid.cli.show.plain import PlainText

    return PlainText(session.lanes, sys.stdout, sys.stderr)
