"""How long work says how far it is: a callback, and one that draws it in a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, TextIO

from rich.console import Console
from rich.progress import BarColumn, SpinnerColumn, TaskID, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars

__all__ = ["Progress", "Report", "ignore", "reporting"]

Stage = Literal["wait", "fetch", "convert"]


@dataclass(frozen=True)
class Progress:
    """How far a stage of the work is.

    Attributes:
        stage: `wait` for another process, `fetch` from a registry or hub, `convert` to what loads fast.
        message: What is being done, for a person to read.
        done: Bytes fetched, or steps taken.
        total: Bytes or steps in all; None where that is not known.
    """

    stage: Stage
    message: str
    done: int = 0
    total: int | None = None


Report = Callable[[Progress], None]


def ignore(progress: Progress) -> None:
    """Report to nobody."""


@contextmanager
def reporting(report: Report | None, file: TextIO | None = None) -> Generator[Report]:
    """Yield `report`, or where it is None one that shows progress on `file` until the block ends.

    A terminal gets a bar for each stage, which appears with the first report; anything else gets one plain line
    for each new message. Work that reports nothing prints nothing.

    Args:
        report: The caller's own callback.
        file: Where to show progress; standard error by default.
    """
    if report is not None:
        yield report
        return
    file = file or sys.stderr
    if file is None:  # a program without a console
        yield ignore
        return
    if not file.isatty():
        yield _PlainLines(file)
        return
    bars = Bars(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        console=Console(file=file),
    )
    try:
        yield _TerminalBars(bars)
    finally:
        bars.stop()


class _PlainLines:
    """One line a message, for logs."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._last = ""

    def __call__(self, progress: Progress) -> None:
        if progress.message != self._last:
            self._last = progress.message
            self._file.write(f"{progress.message}\n")
            self._file.flush()


class _TerminalBars:
    """One bar a stage, for people."""

    def __init__(self, bars: Bars) -> None:
        self._bars = bars
        self._tasks: dict[Stage, TaskID] = {}

    def __call__(self, progress: Progress) -> None:
        if progress.stage not in self._tasks:
            self._bars.start()  # does nothing the second time
            self._tasks[progress.stage] = self._bars.add_task(progress.message, total=progress.total)
        self._bars.update(
            self._tasks[progress.stage],
            description=progress.message,
            completed=progress.done,
            total=progress.total,
        )
