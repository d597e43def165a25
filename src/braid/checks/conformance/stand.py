"""The test stand: a fresh backend for every check, and sessions that follow tapes on it.

with stand.serving() as backend:
    first = Playback(backend, 0, tape)
    play(backend, first, until=6)                     six lines, one a step
    play(backend, first, Playback(backend, 1, other)) both to their ends, in common steps
    farthest(first.heard, stand.alone(tape))
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Protocol

from braid.checks.conformance.oracle import Heard, Oracle
from braid.checks.conformance.tape import Key, Tape
from braid.checks.finding import Finding
from braid.engine.backend import Answer, Ask, Backend, Capabilities, Close, Entry, Item, Open, require_ok
from braid.model.model import Model

__all__ = ["MakeBackend", "Playback", "Stand", "judged", "needs_of", "pages_in_use", "play", "skipped"]

ROOM = 1024
"""Tokens of cache that a check needs at most, where it says nothing else."""


class MakeBackend(Protocol):
    """Makes backends, such as the class `LocalBackend` itself."""

    def __call__(self, model: Model, *, kv_tokens: int) -> Backend:
        """A fresh, empty backend.

        Args:
            model: The weights that it serves, with stream embeddings and all that they were trained with where there
                is any of it. A backend that has weights of its own takes it for their name.
            kv_tokens: Room for so many tokens, about.
        """
        ...


class Stand:
    """One kind of backend under test.

    Args:
        make: Makes one.
        oracle: What it ought to answer.
    """

    def __init__(self, make: MakeBackend, oracle: Oracle) -> None:
        self.oracle = oracle
        self._make = make
        self._alone: dict[Tape, Heard] = {}

    @contextmanager
    def serving(self, model: Model | None = None, *, kv_tokens: int = ROOM) -> Generator[Backend]:
        """A fresh backend for a while; for the stock weights when nothing is said."""
        backend = self._make(self.oracle.stock if model is None else model, kv_tokens=kv_tokens)
        try:
            yield backend
        finally:
            backend.close()

    @cached_property
    def can(self) -> Capabilities:
        """What it says that it can do with stock weights."""
        with self.serving() as backend:
            return backend.capabilities()

    def alone(self, tape: Tape) -> Heard:
        """What a session is told that has a backend to itself from beginning to end."""
        if tape not in self._alone:
            with self.serving(tape.model) as backend:
                (playback,) = play(backend, Playback(backend, 0, tape))
            self._alone[tape] = playback.heard
        return self._alone[tape]


class Playback:
    """One session that follows a tape.

    Args:
        backend: Where.
        number: Which session.
        tape: What it asks.
        at: The line at which it takes over, in a session that is open already; None opens one and begins.
        salt: With which it is opened.
    """

    def __init__(
        self, backend: Backend, number: int, tape: Tape, *, at: int | None = None, salt: str = ""
    ) -> None:
        self.number = number
        self.tape = tape
        self.at = 0 if at is None else at
        self.heard: dict[Key, Answer] = {}
        self._backend = backend
        self._has_statistics = backend.capabilities().statistics
        if at is None:
            backend.apply([Open(number, tape.topology, {}, salt)])

    def take(self, until: int) -> Item | None:
        """Apply the operations that come next, and take the item after them, with room reserved for it."""
        while self.at < min(until, len(self.tape.lines)):
            line = self.tape.lines[self.at]
            if isinstance(line, Item):
                item = self._own(line)
                self._backend.reserve(self.number, needs_of(item.entries))
                self.at += 1
                return item
            self._backend.apply([line._replace(session=self.number)])
            self.at += 1
        return None

    def _own(self, line: Item) -> Item:
        entries = line.entries
        if not self._has_statistics:
            entries = [entry._replace(ask=entry.ask and Ask(entry.ask.draws)) for entry in entries]
        return line._replace(session=self.number, entries=entries)

    def hear(self, item: Item, answers: Sequence[Answer]) -> None:
        """Note what an item was told."""
        asking = [entry for entry in item.entries if entry.ask is not None]
        for entry, answer in zip(asking, answers, strict=True):
            self.heard[entry.times[-1], entry.lane] = answer

    def close(self) -> None:
        """End the session."""
        self._backend.apply([Close(self.number)])


def play(
    backend: Backend, *playbacks: Playback, until: int = 1 << 30, steps: int = 1 << 30
) -> tuple[Playback, ...]:
    """Go on with sessions in common steps, one item of each a step, to their ends.

    Args:
        backend: Where.
        playbacks: The sessions, in the order in which their items are handed in.
        until: A line at which each stops.
        steps: How many steps at most.

    Raises:
        BaseException: What an item failed with.
    """
    for _ in range(steps):
        taken = [(playback, playback.take(until)) for playback in playbacks]
        items = [(playback, item) for playback, item in taken if item is not None]
        if not items:
            break
        results = backend.step([item for _, item in items])
        for (playback, item), result in zip(items, results, strict=True):
            playback.hear(item, require_ok(result))
    return playbacks


def needs_of(entries: Sequence[Entry]) -> list[tuple[str, int]]:
    """Room that these entries take, by span."""
    return [(entry.span, len(entry.token_ids)) for entry in entries if entry.keep]


def pages_in_use(backend: Backend) -> int:
    """Pages that sessions hold, after everything that is kept for others was let go."""
    while backend.release_prefixes(1 << 20):
        pass
    return backend.usage().pages_used


# ---- findings


def judged(name: str, value: float, bound: float, detail: str, *, holds: bool = True) -> Finding:
    """What was found.

    Args:
        name: Of the check.
        value: The figure.
        bound: The largest that is right.
        detail: What was compared.
        holds: Whether all else is right that is no figure.
    """
    return Finding(name, value <= bound and holds, value, bound, detail)


def skipped(name: str, reason: str) -> Finding:
    """What is not checked, because the backend says that it cannot do it."""
    return Finding(name, None, None, None, f"skipped: {reason}")
