"""A progress bar for what takes a while."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Protocol

__all__ = ["Advance", "progress_bar"]


class Advance(Protocol):
    """Is told how much is done, of how much where that is known by then, and of what where that changes."""

    def __call__(self, done: int, total: int | None = None, what: str | None = None, /) -> None:
        """Show it."""
        ...


@contextmanager
def progress_bar(what: str, total: int | None = None) -> Generator[Advance]:
    """A progress bar on standard error, where that is a terminal."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(what, total=total)

        def advance(done: int, total: int | None = None, what: str | None = None, /) -> None:
            progress.update(task, completed=done, total=total, description=what)

        yield advance
