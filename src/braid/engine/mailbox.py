"""Where a session's news waits for whoever listens: filled by the engine's thread, emptied on an event loop.

    engine thread ── put() ──▶ [ … ] ── async for ──▶ listener
                                 │
                   full, somebody listens:  the session pauses until half is read
                   full, nobody listens:    the oldest news goes, and the next listener is told how much

The transcript is the record; nothing of it is ever lost here.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Self

import anyio
import anyio.lowlevel

from braid.engine.record import News, as_event
from braid.streams.events import Event, NoticeEvent

__all__ = ["Bell", "Listener", "Mailbox"]


class Bell:
    """Wakes whoever waits, on whatever event loop, from any thread, without ever blocking the one who rings."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: list[tuple[Any, anyio.Event]] = []

    def ring(self) -> None:
        """Wake all who wait now."""
        with self._lock:
            waiting, self._waiting = self._waiting, []
        for token, event in waiting:
            _soon(token, event.set)

    def ticket(self) -> anyio.Event:
        """An event that the next ring sets; take it before looking whether there is anything to wait for."""
        event = anyio.Event()
        with self._lock:
            self._waiting.append((anyio.lowlevel.current_token().native_token, event))
        return event


def _soon(token: Any, function: Callable[[], None]) -> None:
    """Have an event loop call a function; nothing happens where the loop has ended."""
    call = getattr(token, "call_soon_threadsafe", None) or token.run_sync_soon
    try:
        call(function)
    except RuntimeError:  # asyncio: the loop is closed; trio's RunFinishedError is one too
        return


class Listener:
    """Iterates over the events of a mailbox. Not a generator: one that is left half-way must not need an event loop."""

    def __init__(self, mailbox: Mailbox) -> None:
        self._mailbox = mailbox
        self._is_listening = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        if not self._is_listening:
            self._is_listening = True
            self._mailbox.listen(1)
        event = await self._mailbox.receive()
        if event is None:
            self.stop()
            raise StopAsyncIteration
        return event

    def stop(self) -> None:
        """Listen no longer; harmless when repeated."""
        if self._is_listening:
            self._is_listening = False
            self._mailbox.listen(-1)

    def __del__(self) -> None:
        self.stop()


class Mailbox:
    """News of one session for one listener.

    Args:
        limit: News that may wait.
        on_room: Called when a full mailbox has room again.
    """

    def __init__(self, limit: int, on_room: Callable[[], None]) -> None:
        self._news: deque[News] = deque()
        self._limit = limit
        self._on_room = on_room
        self._lock = threading.Lock()
        self._bell = Bell()
        self._num_listeners = 0
        self._num_dropped = 0
        self._is_closed = False
        self._is_full = False

    @property
    def is_full(self) -> bool:
        """Whether the session has to pause, because a listener has not kept up."""
        return self._is_full

    @property
    def num_waiting(self) -> int:
        """News that nobody has taken yet."""
        return len(self._news)

    def put(self, news: Sequence[News]) -> None:
        """Add news, in order."""
        with self._lock:
            self._news.extend(news)
            self._judge()
        self._bell.ring()

    def close(self) -> None:
        """No more news comes; listeners end when they have taken what there is."""
        with self._lock:
            self._is_closed, self._is_full = True, False
        self._bell.ring()

    def events(self) -> Listener:
        """What happens, until the session is closed. One listener at a time."""
        return Listener(self)

    def listen(self, number: int) -> None:
        """Note that so many listeners have come, or gone."""
        with self._lock:
            self._num_listeners += number
            self._judge()

    async def receive(self) -> Event | None:
        """The next event; None when no more comes."""
        while True:
            ticket = self._bell.ticket()
            was_closed = self._is_closed  # asked first: what came just before the end must not be missed
            news = self._take()
            if news is not None:
                await anyio.lowlevel.checkpoint()
                return as_event(news)
            if was_closed:
                return None
            await ticket.wait()

    def _take(self) -> News | None:
        with self._lock:
            if self._num_dropped:
                count, self._num_dropped = self._num_dropped, 0
                return NoticeEvent(
                    t=0, code="dropped", message=f"{count} events went unheard; the transcript has all of them"
                )
            if not self._news:
                return None
            news = self._news.popleft()
            has_room = self._is_full and len(self._news) <= self._limit // 2
            if has_room:
                self._is_full = False
        if has_room:
            self._on_room()
        return news

    def _judge(self) -> None:
        """Full, and what to do about it."""
        if self._num_listeners:
            self._is_full = self._is_full or (len(self._news) >= self._limit and not self._is_closed)
            return
        was_full, self._is_full = self._is_full, False
        while len(self._news) > self._limit:
            self._news.popleft()
            self._num_dropped += 1
        if was_full:
            self._on_room()
