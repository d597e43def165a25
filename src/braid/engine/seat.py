"""A session's place in the engine's loop: its state, those who listen to it, and its limits."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable, Sequence

from braid.engine.backend import Draft, SessionLook
from braid.engine.mailbox import Bell, Mailbox
from braid.engine.session.conversation import Conversation
from braid.engine.session.record import News
from braid.errors import BraidError
from braid.streams.events import DeltaEvent, Event
from braid.streams.transcript import Transcript

__all__ = ["Seat"]


class Seat:
    """A session in the loop; it implements `SessionHandle`.

    Args:
        conversation: Its state, which the loop's lock guards.
        lock: That lock.
        max_events: News that may wait for a listener.
        wake: Called when a listener that had not kept up has room again.
        hold: Called with the lock held for each piece of text that a listener has to take before silence may end a
            turn, see `listen`.
    """

    def __init__(
        self,
        conversation: Conversation,
        lock: threading.RLock,
        max_events: int,
        wake: Callable[[], None],
        hold: Callable[[], None],
    ) -> None:
        self.conversation = conversation
        self.number = conversation.number
        self.topology = conversation.topology
        self.changed = Bell()
        self.flush_at: dict[str, float] = {}
        """When held text of an input is overdue."""
        self.max_rows: int | None = None
        self.max_turns: int | None = None
        self.worked_at = 0.0
        self._lock = lock
        self._max_events = max_events
        self._wake = wake
        self._hold = hold
        self._mailboxes: list[Mailbox] = []
        self._holding: frozenset[str] = frozenset()
        self.mailbox = Mailbox(max_events, wake, takes_lines=conversation.ledger is not None)
        """Where all news comes from the beginning on, the lines of the ledger too, where one is kept."""
        self._mailboxes.append(self.mailbox)

    @property
    def transcript(self) -> Transcript:
        """The canonical record so far."""
        return self.conversation.transcript

    @property
    def error(self) -> BraidError | None:
        """What ended the session from inside."""
        return self.conversation.error

    def look(self) -> SessionLook:
        """How it stands."""
        conversation = self.conversation
        with self._lock:
            return SessionLook(
                t=conversation.t,
                turn=conversation.turn,
                turn_is_over=conversation.turn_is_over,
                is_closed=conversation.is_closed,
                is_evicted=conversation.is_evicted,
                num_queued=conversation.num_queued,
                kv_tokens=conversation.kv_tokens,
                peak_kv_tokens=conversation.peak_kv_tokens,
                num_cached=conversation.prefix.num_cached,
                reuse=None if conversation.counts is None else conversation.counts.told(),
                num_accepted=conversation.ahead.num_accepted,
                num_rejected=conversation.ahead.num_rejected,
            )

    def look_at_draft(self) -> Draft | None:
        """What is drafted of the newest snapshot; None while there is nothing, and once it is committed."""
        with self._lock:
            return self.conversation.draft

    def events(self) -> AsyncIterator[Event]:
        """What happens, until it is closed; one listener at a time."""
        return self.mailbox.events()

    def listen(self, holding: frozenset[str] = frozenset()) -> Mailbox:
        """A mailbox of one's own for all news from now on.

        Args:
            holding: Streams of which every piece of text is awaited like a result, until the listener has taken it
                and says so with the verb `result_came`: silence ends no turn before what was said has been heard.
        """
        with self._lock:
            self.deliver()
            mailbox = Mailbox(self._max_events, self._wake)
            self._mailboxes.append(mailbox)
            self.hold(holding)
            if self.conversation.is_closed:
                mailbox.close()
            return mailbox

    def hold(self, streams: frozenset[str]) -> None:
        """From now on, await every piece of text of these streams like a result, as `listen` does."""
        with self._lock:
            self.deliver()  # what came before is not held
            self._holding |= streams

    def deliver(self) -> bool:
        """Hand what is new to those who listen; returns whether one of them has fallen behind just now."""
        news = self.conversation.take_news() if self._mailboxes else []
        if not news:
            return False
        was_paused = self.is_paused
        self._hold_for(news)
        for mailbox in self._mailboxes:
            mailbox.put(news)
        return self.is_paused and not was_paused

    def _hold_for(self, news: Sequence[News]) -> None:
        if self._holding and not self.conversation.is_closed:
            for piece in news:
                if isinstance(piece, DeltaEvent) and piece.stream.partition("#")[0] in self._holding:
                    self._hold()

    @property
    def is_told(self) -> bool:
        """Whether somebody is called as soon as there is news."""
        return any(mailbox.on_news is not None for mailbox in self._mailboxes)

    @property
    def is_paused(self) -> bool:
        """Whether it must not go on before a listener has caught up."""
        return any(mailbox.is_full for mailbox in self._mailboxes)

    @property
    def spent(self) -> str | None:
        """Which limit the session has reached."""
        conversation = self.conversation
        if self.max_turns is not None and conversation.turn >= self.max_turns:
            return "max_turns"
        return "max_rows" if self.max_rows is not None and conversation.t >= self.max_rows else None

    def leave(self) -> None:
        """The session is closed: listeners end when they have taken what there is."""
        for mailbox in self._mailboxes:
            mailbox.close()
        self.changed.ring()
