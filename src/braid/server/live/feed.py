"""What a session tells, and how far the one client that listens has come.

    session ── publish ──▶ [ … tail … ] ──▶ connection, from its cursor on
                            └ older ones: from the store

The tail is only a shortcut. A connection that comes, or lags, reads what is gone from it in the store.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import anyio

from braid.server.store import Store, StoredMessage

__all__ = ["Feed", "Listening", "Published"]

TAIL = 256
"""Messages of a session that are kept at hand."""


class Listening(Protocol):
    """A connection, as far as a feed sees it."""

    @property
    def cursor(self) -> int:
        """Id of the last message that was sent."""
        ...

    def wake(self) -> None:
        """There may be something to send."""
        ...

    def dismiss(self, code: int, error: Exception) -> None:
        """Say why, and close."""
        ...


@dataclass(frozen=True, slots=True)
class Published:
    """A message that is stored.

    Args:
        id: Its number.
        text: As it is sent.
        since: When what it tells was there, on `time.perf_counter`; None where that says nothing.
    """

    id: int
    text: str
    since: float | None = None


class Feed:
    """The messages of one session.

    Args:
        name: The session's.
        store: Where all of them are.
        last_id: Of the newest one.
    """

    def __init__(self, name: str, store: Store, last_id: int) -> None:
        self.name = name
        self.last_id = last_id
        self.connection: Listening | None = None
        self._store = store
        self._tail: deque[Published] = deque(maxlen=TAIL)
        self._wanted: int | None = None
        """The limit under which somebody waits for room."""
        self.on_room: Callable[[], None] | None = None
        """Called when there is room again, after there was none."""
        self._left = anyio.Event()

    def publish(self, messages: Sequence[StoredMessage], since: float | None = None) -> None:
        """Offer messages that are stored now."""
        for message in messages:
            self._tail.append(Published(message.id, message.text, since))
        if messages:
            self.last_id = messages[-1].id
            if self.connection is not None:
                self.connection.wake()

    async def fetch(self, after: int) -> Sequence[Published]:
        """The next messages after one, some of them at least; empty when there are none yet."""
        if after >= self.last_id:
            return ()
        if self._tail and self._tail[0].id <= after + 1:
            skipped = after + 1 - self._tail[0].id
            return [self._tail[i] for i in range(skipped, len(self._tail))]
        last = self.last_id  # what is committed, but not published yet, is not told before its turn
        found = await self._store.messages(self.name, after)
        return [Published(message.id, message.text) for message in found if message.id <= last]

    # ---- the listener

    def attach(self, connection: Listening) -> Listening | None:
        """Have a connection listen; returns the one that it replaces."""
        replaced, self.connection = self.connection, connection
        self.moved()
        return replaced

    def detach(self, connection: Listening) -> bool:
        """The connection is gone; returns whether it was the one that listened."""
        if self.connection is not connection:
            return False
        self.connection = None
        self._left.set()
        self.moved()
        return True

    def moved(self) -> None:
        """The connection has sent something, or is another one."""
        if self._wanted is not None and self.has_room(self._wanted) and self.on_room is not None:
            self.on_room()

    async def until_alone(self) -> None:
        """Return when nobody listens."""
        while self.connection is not None:
            self._left = anyio.Event()
            await self._left.wait()

    def has_room(self, limit: int) -> bool:
        """Whether fewer messages than that wait for a client that is connected; if not, `on_room` is called once so."""
        if self.connection is None or self.last_id - self.connection.cursor < limit:
            self._wanted = None
            return True
        self._wanted = limit
        return False
