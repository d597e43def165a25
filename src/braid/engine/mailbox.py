"""Where a session's news waits for whoever listens: filled by the engine's thread, emptied on an event loop.

    engine thread ── put() ──▶ [ … ] ── async for ──▶ listener
                                 │
                   full, somebody listens:  the session pauses until half is read
                   full, nobody listens:    the oldest news goes, and the next listener is told how much

The transcript is the record; nothing of it is ever lost here. The engine's thread holds the engine's lock while it
fills a mailbox, so nothing here calls the engine while it holds a mailbox's own.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Self, TypeVar
from weakref import WeakSet

import anyio
import anyio.lowlevel

from braid.engine.session.record import LedgerLine, News, as_event
from braid.streams.events import Event, NoticeEvent

__all__ = ["Bell", "Listener", "Mailbox"]

Value = TypeVar("Value")


class Bell:
    """Wakes whoever waits, on whatever event loop, from any thread, without ever blocking the one who rings."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[anyio.Event, Any] = {}
        """Who waits, and on which event loop."""
        self.on_ring: Callable[[], None] | None = None
        """Called too, by whoever rings; it must not wait for anything."""

    def ring(self) -> None:
        """Wake all who wait now."""
        with self._lock:
            waiting, self._waiting = self._waiting, {}
        for event, loop in waiting.items():
            _soon(loop, event.set)
        if (on_ring := self.on_ring) is not None:
            on_ring()

    async def until(self, look: Callable[[], Value | None]) -> Value:
        """Wait until there is something to see.

        Args:
            look: Asked at once, and whenever the bell has rung; None while there is nothing.
        """
        loop = anyio.lowlevel.current_token().native_token
        while True:
            event = anyio.Event()
            with self._lock:
                self._waiting[event] = loop  # before looking, so that no ring is missed
            try:
                found = look()
                if found is not None:
                    return found
                await event.wait()
            finally:
                with self._lock:
                    self._waiting.pop(event, None)


def _soon(loop: Any, function: Callable[[], None]) -> None:
    """Have an event loop call a function; nothing happens where the loop has ended."""
    call = getattr(loop, "call_soon_threadsafe", None) or loop.run_sync_soon
    try:
        call(function)
    except RuntimeError:  # asyncio: the loop is closed; trio's RunFinishedError is one too
        return


class Listener:
    """Iterates over the events of a mailbox.

    Not a generator, which needs an event loop when it is left half-way: whoever drops a listener listens no longer.
    """

    def __init__(self, mailbox: Mailbox) -> None:
        self._mailbox = mailbox
        mailbox.heed(self)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        event = await self._mailbox.receive()
        if event is None:
            raise StopAsyncIteration
        return event


class Mailbox:
    """News of one session for one listener.

    Args:
        limit: News that may wait.
        on_room: Called when a full mailbox has room again.
        takes_lines: Whether the ledger's lines come here, too; they are read with `take`. Then no news is ever dropped,
            for a ledger with a gap is none: the session pauses, whether somebody listens or not.
    """

    def __init__(self, limit: int, on_room: Callable[[], None], *, takes_lines: bool = False) -> None:
        self._news: deque[News] = deque()
        self._limit = limit
        self._on_room = on_room
        self._takes_lines = takes_lines
        self._lock = threading.Lock()
        self._bell = Bell()
        # Weak: a finalizer could run in the middle of anything, and must not take a lock.
        self._listeners: WeakSet[object] = WeakSet()
        self._num_dropped = 0
        self._is_closed = False
        self._is_full = False
        self.on_news: Callable[[], None] | None = None
        """Called, from the engine's thread, when there is an event to take; for whoever watches many mailboxes."""
        self._num_events = 0
        """News that waits, the ledger's lines apart: these alone are no reason to wake anybody."""
        self.since = 0.0
        """When the oldest event that waits came, on `time.perf_counter`."""

    @property
    def is_full(self) -> bool:
        """Whether the session has to pause, because a listener has not kept up."""
        return self._is_full and self._is_heeded

    @property
    def num_waiting(self) -> int:
        """News that nobody has taken yet."""
        return len(self._news)

    @property
    def _is_heeded(self) -> bool:
        return self._takes_lines or len(self._listeners) > 0

    def heed(self, listener: object) -> None:
        """Note that somebody listens, for as long as that object lives."""
        self._listeners.add(listener)

    def put(self, news: Sequence[News]) -> None:
        """Add news, in order."""
        if not self._takes_lines:
            news = [piece for piece in news if not isinstance(piece, LedgerLine)]
        num_events = sum(not isinstance(piece, LedgerLine) for piece in news)
        with self._lock:
            if num_events and not self._num_events:
                self.since = time.perf_counter()
            self._num_events += num_events
            self._news.extend(news)
            if self._is_heeded:
                self._is_full = self._is_full or len(self._news) >= self._limit
            else:
                self._is_full = False
                while len(self._news) > self._limit:
                    self._news.popleft()
                    self._num_events -= 1
                    self._num_dropped += 1
        if self.has_news:
            self._ring()

    def close(self) -> None:
        """No more news comes; listeners end when they have taken what there is."""
        with self._lock:
            self._is_closed, self._is_full = True, False
        self._ring()

    def _ring(self) -> None:
        self._bell.ring()
        if self.on_news is not None:
            self.on_news()

    @property
    def has_news(self) -> bool:
        """Whether there is an event to take, or no more comes; lines of the ledger wait for the next event."""
        return bool(self._num_events or self._num_dropped or self._is_closed or self._is_full)

    def events(self) -> Listener:
        """What happens, until the session is closed. One listener at a time."""
        return Listener(self)

    async def receive(self) -> Event | None:
        """The next event; None when no more comes. Where it is cancelled, nothing was taken."""
        await anyio.lowlevel.checkpoint_if_cancelled()
        while True:
            if self._is_idle:
                await self._bell.until(lambda: None if self._is_idle else True)
            else:
                await anyio.lowlevel.cancel_shielded_checkpoint()
            was_closed = self._is_closed  # asked first: what came just before the end must not be missed
            news = self._take()
            if news is not None:
                assert not isinstance(news, LedgerLine), "a mailbox for lines is read with take"
                return as_event(news)
            if was_closed:
                return None

    async def until_news(self) -> bool:
        """Return when there is an event to take; False when no more comes. Nothing is taken.

        Lines of the ledger wait for the next event, unless there are too many of them.
        """
        await self._bell.until(lambda: self.has_news or None)
        return bool(self._news or self._num_dropped)

    async def take(self, most: int = 1000) -> list[News]:
        """All that has come, in order, at least one thing; empty when no more comes.

        Rows come as they are; `as_event` makes events of them, for whoever needs that.

        Args:
            most: How many at once.
        """
        await anyio.lowlevel.checkpoint_if_cancelled()
        while True:
            if self._is_idle:
                await self._bell.until(lambda: None if self._is_idle else True)
            was_closed = self._is_closed  # asked first: what came just before the end must not be missed
            taken = self.take_nowait(most)
            if taken or was_closed:
                return taken

    def take_nowait(self, most: int) -> list[News]:
        """What has come, in order, lines of the ledger too; maybe nothing."""
        taken: list[News] = []
        while len(taken) < most and (news := self._take()) is not None:
            taken.append(news)
        return taken

    @property
    def _is_idle(self) -> bool:
        return not (self._news or self._num_dropped or self._is_closed)

    def _take(self) -> News | None:
        with self._lock:
            if self._num_dropped:
                return self._notice()
            if not self._news:
                return None
            news = self._news.popleft()
            self._num_events -= not isinstance(news, LedgerLine)
            has_room = self._is_full and len(self._news) <= self._limit // 2
            if has_room:
                self._is_full = False
        if has_room:
            self._on_room()
        return news

    def _notice(self) -> NoticeEvent:
        """How much went unheard, before what is left."""
        count, self._num_dropped = self._num_dropped, 0
        first = self._news[0] if self._news else None
        message = f"{count} events went unheard; the transcript has all of them"
        return NoticeEvent(t=getattr(first, "t", 0), code="dropped", message=message)
