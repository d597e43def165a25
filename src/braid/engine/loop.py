"""The engine by itself: one thread that steps while anybody has something to do, and sleeps while nobody has.

    event loops, other threads                 the engine's thread
    push("write", …) ── verb, at once ──┐      while there are sessions:
    look()                              ├──▶       wait for a verb or a deadline
    call(fork, …)   ── between steps ───┘          EngineCore.step(those with something to do)
    rows()  ◀── mailbox ── news ◀───────────────   deliver what is new, before and after the forward

The thread begins with the first session and ends with the last one. It implements `SessionBackend`.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import anyio

from braid.engine.backend import Backend, Capabilities, SessionLook
from braid.engine.conversation import Conversation
from braid.engine.core import EngineCore, as_braid_error
from braid.engine.journal import Journal
from braid.engine.mailbox import Bell, Mailbox
from braid.engine.scheduler import SchedulerPolicy
from braid.engine.starts import require_supported
from braid.errors import (
    BraidError,
    EngineBusyError,
    EngineClosedError,
    InputError,
    SessionClosedError,
)
from braid.streams.events import Event
from braid.streams.topology import Topology
from braid.streams.transcript import Transcript

if TYPE_CHECKING:
    from braid.engine.metrics import EngineMetrics
    from braid.engine.tracing import Tracer

__all__ = ["Dropped", "EngineLimits", "EngineLoop", "Seat"]

Value = TypeVar("Value")


@dataclass(frozen=True)
class EngineLimits:
    """How much an engine takes on.

    Args:
        max_sessions: Sessions that are open at once.
        max_waiting: Sessions that may wait for a seat; more are turned away at once.
        admission_timeout_s: How long a session waits for a seat.
        max_queued: Input tokens of a session that may wait to be read.
        max_events: Events of a session that may wait for a listener; one that has more to say pauses.
        evict_idle_after_s: Seconds without work after which a session gives its cache back; None leaves it until
            somebody needs the room.
    """

    max_sessions: int = 256
    max_waiting: int = 64
    admission_timeout_s: float = 30.0
    max_queued: int = 65_536
    max_events: int = 4096
    evict_idle_after_s: float | None = None

    def __post_init__(self) -> None:
        for name in ("max_sessions", "max_queued", "max_events"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} is {getattr(self, name)}; it must be 1 or more")
        if self.max_waiting < 0 or self.admission_timeout_s < 0:
            raise InputError("max_waiting and admission_timeout_s must be 0 or more")


@dataclass(frozen=True)
class Dropped:
    """What a shutdown left undone in one session."""

    session: int
    num_queued: int
    """Input tokens that were never read."""
    speaking: tuple[str, ...]
    """Outputs that had not finished."""


class Seat:
    """A session in the loop; it implements `SessionHandle`.

    Args:
        conversation: Its state, which the loop's lock guards.
        lock: That lock.
        max_events: News that may wait for a listener.
        wake: Called when a listener that had not kept up has room again.
    """

    def __init__(
        self,
        conversation: Conversation,
        lock: threading.RLock,
        max_events: int,
        wake: Callable[[int], None],
    ) -> None:
        self.conversation = conversation
        self.number = conversation.number
        self.topology = conversation.topology
        self.error: BraidError | None = None
        self.changed = Bell()
        self.flush_at: dict[str, float] = {}
        """When held text of an input is overdue."""
        self.max_rows: int | None = None
        self.max_turns: int | None = None
        self.worked_at = 0.0
        self._lock = lock
        self._max_events = max_events
        self._wake = wake
        self.mailboxes: list[Mailbox] = []
        self._main = self.listen()

    @property
    def transcript(self) -> Transcript:
        """The canonical record so far."""
        return self.conversation.transcript

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
            )

    def events(self) -> AsyncIterator[Event]:
        """What happens, until it is closed; one listener at a time."""
        return self._main.events()

    def listen(self) -> Mailbox:
        """A mailbox of one's own for all news from now on."""
        with self._lock:
            self.deliver()
            mailbox = Mailbox(self._max_events, lambda: self._wake(self.number))
            self.mailboxes.append(mailbox)
            if self.conversation.is_closed:
                mailbox.close()
            return mailbox

    def deliver(self) -> bool:
        """Hand what is new to those who listen; returns whether one of them has fallen behind just now."""
        news = self.conversation.take_news() if self.mailboxes else []
        if not news:
            return False
        was_paused = self.is_paused
        for mailbox in self.mailboxes:
            mailbox.put(news)
        return self.is_paused and not was_paused

    @property
    def is_paused(self) -> bool:
        """Whether it must not go on before a listener has caught up."""
        return any(mailbox.is_full for mailbox in self.mailboxes)

    @property
    def spent(self) -> str | None:
        """Which limit the session has reached."""
        conversation = self.conversation
        if self.max_turns is not None and conversation.turn >= self.max_turns:
            return "max_turns"
        return "max_rows" if self.max_rows is not None and conversation.t >= self.max_rows else None

    def leave(self) -> None:
        """The session is closed: listeners end when they have taken what there is."""
        for mailbox in self.mailboxes:
            mailbox.close()
        self.changed.ring()


class EngineLoop:
    """Drives a backend for any number of sessions.

    Args:
        backend: What computes.
        policy: Of the scheduler.
        limits: How much it takes on.
        journal, metrics, tracer: As for `EngineCore`.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        policy: SchedulerPolicy | None = None,
        limits: EngineLimits | None = None,
        journal: Journal | None = None,
        metrics: EngineMetrics | None = None,
        tracer: Tracer | None = None,
    ) -> None:
        self.core = EngineCore(backend, policy=policy, journal=journal, metrics=metrics, tracer=tracer)
        self.limits = limits or EngineLimits()
        self.metrics = metrics
        self._changed = threading.Condition(self.core.lock)
        self._seats: dict[int, Seat] = {}
        self._reserved = 0
        """Seats that were promised and are not taken yet."""
        self._touched: set[int] = set()
        """Sessions that may have something to do."""
        self._commands: deque[Callable[[], None]] = deque()
        self._thread: threading.Thread | None = None
        self._is_closing = False
        self._vacancy = Bell()
        self._num_waiting = 0
        self._began = time.monotonic()

    # ---- SessionBackend

    def capabilities(self) -> Capabilities:
        """What the backend can do."""
        return self.core.backend.capabilities()

    @property
    def bytes_per_token(self) -> int:
        """Bytes of one kept token."""
        return self.core.backend.usage().bytes_per_token

    def check(self, topology: Topology, settings: Mapping[str, Any]) -> Topology:
        """The topology as it would be served.

        Raises:
            CheckpointConflictError, UnsupportedByBackend, UnsupportedModelError, InputError: As `start` would.
        """
        settled = self.core.backend.settle(topology)
        require_supported(settled, self.capabilities(), settings.get("predicates") or {})
        settled.lanes(settings.get("copies"))
        return settled

    async def admit(self) -> None:
        """Wait for a seat; `start` takes it, `decline` gives it back.

        Raises:
            EngineBusyError: Too many wait already, or none came free in time.
            EngineClosedError: The engine is shut down.
        """
        limits = self.limits
        deadline = anyio.current_time() + limits.admission_timeout_s
        is_first = True
        try:
            while True:
                ticket = self._vacancy.ticket()
                with self._changed:
                    self._require_open()
                    if len(self._seats) + self._reserved < limits.max_sessions:
                        self._reserved += 1
                        return
                    if is_first and self._num_waiting >= limits.max_waiting:
                        raise EngineBusyError(
                            f"{len(self._seats)} sessions are open and {self._num_waiting} wait; try again later, "
                            "or raise the engine's max_sessions",
                            retry_after_s=1.0,
                        )
                    self._num_waiting += is_first
                    is_first = False
                with anyio.move_on_after(deadline - anyio.current_time()) as scope:
                    await ticket.wait()
                if scope.cancelled_caught:
                    raise EngineBusyError(
                        f"no session ended within {limits.admission_timeout_s:g} s; try again later",
                        retry_after_s=limits.admission_timeout_s,
                    )
        finally:
            if not is_first:
                with self._changed:
                    self._num_waiting -= 1

    def decline(self) -> None:
        """Give back a seat that was promised."""
        with self._changed:
            self._reserved -= 1
        self._vacancy.ring()

    def start(self, topology: Topology, settings: Mapping[str, Any] | None = None) -> Seat:
        """Open a session on a seat that was promised by `admit`, or on a free one.

        Args:
            topology: The streams.
            settings: Further arguments of `EngineCore.open`.

        Raises:
            EngineBusyError: There is no free seat.
            EngineClosedError: The engine is shut down.
            BraidError: What opening raises.
        """
        with self._changed:
            self._require_open()
            if not self._reserved and len(self._seats) >= self.limits.max_sessions:
                raise EngineBusyError(
                    f"{len(self._seats)} sessions are open; close one, or raise the engine's max_sessions"
                )
            given = {"max_queued": self.limits.max_queued, **(settings or {})}
            conversation = self.core.open(topology, **given)
            self._reserved = max(0, self._reserved - 1)
            return self._take_seat(conversation)

    def _take_seat(self, conversation: Conversation) -> Seat:
        seat = Seat(conversation, self.core.lock, self.limits.max_events, self._wake)
        seat.worked_at = self.now()
        self._seats[conversation.number] = seat
        self._touch(conversation.number)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="braid-engine", daemon=True)
            self._thread.start()
        if self.metrics is not None:
            self.metrics.sessions(len(self._seats), sum(s.conversation.is_evicted for s in self._seats.values()))
        return seat

    def push(self, session: int, verb: str, *arguments: Any) -> Any:
        """Apply a verb before the next row.

        Raises:
            SessionClosedError: The session is gone.
            BraidError: What the verb raises; nothing was changed then.
        """
        with self._changed:
            seat = self._seat(session)
            value = self.core.do(seat.conversation, verb, *arguments, now=self.now())
            self._set_deadline(seat, verb, arguments)
            self._deliver(seat)
            if seat.conversation.is_closed:
                self._leave(seat)
            self._touch(session)
            return value

    def _set_deadline(self, seat: Seat, verb: str, arguments: Sequence[Any]) -> None:
        """Text that `write` holds back is fed when the stream's latency is over."""
        stream = arguments[0] if arguments else None
        if verb == "write":
            latency_ms = seat.conversation.stage.input(stream).spec.max_latency_ms
            if latency_ms is not None:
                seat.flush_at.setdefault(stream, self.now() + latency_ms / 1000)
        elif verb in ("end", "flush", "close_stream"):
            for name in [name for name in seat.flush_at if stream in (None, name)]:
                del seat.flush_at[name]

    def abort(self, session: int, reason: str = "closed") -> None:
        """Close the session now; harmless when it is closed already."""
        with self._changed:
            seat = self._seats.get(session)
            if seat is not None:
                self.push(session, "close", reason)

    def note_tool(self, status: str, seconds: float) -> None:
        """Count a tool call that is over."""
        if self.metrics is not None:
            self.metrics.tool(status, seconds)

    # ---- more than the protocol asks

    def now(self) -> float:
        """Seconds since the engine began."""
        return time.monotonic() - self._began

    def limit(self, session: int, *, max_rows: int | None, max_turns: int | None) -> None:
        """Close the session by itself after so many rows, or turns."""
        with self._changed:
            seat = self._seats.get(session)
            if seat is not None:
                seat.max_rows, seat.max_turns = max_rows, max_turns
                self._touch(session)

    async def fork(self, session: int) -> Seat:
        """Open a session that holds what this one holds, and goes on by itself.

        Raises:
            SessionClosedError, EngineBusyError, EngineClosedError
        """
        await self.admit()
        try:
            return await self._between(lambda: self._fork(session))
        except BaseException:
            self.decline()
            raise

    def _fork(self, session: int) -> Seat:
        twin = self.core.fork(self._seat(session).conversation)
        self._reserved -= 1
        return self._take_seat(twin)

    async def evict(self, session: int) -> None:
        """Give the session's cache back; it is refilled from the transcript when there is something to do."""
        await self._between(lambda: self.core.evict(self._seat(session).conversation))

    async def _between(self, command: Callable[[], Value]) -> Value:
        """Run a command in the engine's thread, between two steps."""
        future: Future[Value] = Future()
        done = Bell()
        ticket = done.ticket()

        def run() -> None:
            try:
                future.set_result(command())
            except BaseException as error:
                future.set_exception(error)
            done.ring()

        with self._changed:
            if self._thread is None:
                run()
            else:
                self._commands.append(run)
                self._changed.notify_all()
        with anyio.CancelScope(shield=True):  # it will be run, and what it makes must be known
            while not future.done():
                await ticket.wait()
        return future.result()

    async def aclose(self, *, drain: bool = True, timeout_s: float = 30.0) -> list[Dropped]:
        """Shut down: admit nobody, let turns that are under way finish, close all sessions, give the cache back.

        Args:
            drain: Whether to wait for turns at all.
            timeout_s: How long.

        Returns:
            What was left undone, by session; empty when everything was finished.
        """
        with self._changed:
            self._is_closing = True
        self._vacancy.ring()
        with anyio.move_on_after(timeout_s if drain else 0):
            for seat in list(self._seats.values()):
                while not seat.conversation.is_closed and not seat.conversation.turn_is_over:
                    ticket = seat.changed.ticket()
                    if seat.conversation.turn_is_over or seat.conversation.is_closed:
                        break
                    await ticket.wait()
        with anyio.CancelScope(shield=True):
            return await self._between(self._close_all)

    def _close_all(self) -> list[Dropped]:
        dropped: list[Dropped] = []
        with self._changed:
            for number, seat in list(self._seats.items()):
                conversation = seat.conversation
                if not conversation.turn_is_over:
                    speaking = tuple(lane.label for lane in conversation.stage.outputs if lane.is_awake)
                    dropped.append(Dropped(number, conversation.num_queued, speaking))
                self.abort(number, "shutdown")
            self.core.close()
            self._changed.notify_all()
        return dropped

    # ---- the thread

    def _run(self) -> None:
        while True:
            with self._changed:
                busy = self._wait()
                if busy is None:
                    self._thread = None
                    return
                conversations = [self._seats[number].conversation for number in sorted(busy)]
            try:
                self._step(conversations)
            except BaseException as error:  # noqa: BLE001 (nobody is there to raise to: the sessions are told)
                with self._changed:
                    for conversation in conversations:
                        self._fail(conversation, as_braid_error(error))

    def _wait(self) -> set[int] | None:
        """Sleep until there is something to do, and say for whom; None when there is nobody any more."""
        while True:
            while self._commands:
                self._commands.popleft()()
            due = self._do_what_is_due()
            busy = {n for n in self._touched if n in self._seats and not self._seats[n].is_paused}
            if busy:
                self._touched -= busy
                return busy
            if not self._seats and not self._commands:
                return None
            self._changed.wait(None if due == math.inf else max(0.0, due - self.now()))

    def _do_what_is_due(self) -> float:
        """Feed held text that is overdue, rest sessions that idle; returns when the next thing is due."""
        now, due = self.now(), math.inf
        idle_s = self.limits.evict_idle_after_s
        for number, seat in self._seats.items():
            for stream, at in list(seat.flush_at.items()):
                if at <= now:
                    del seat.flush_at[stream]
                    self.core.do(seat.conversation, "flush", stream, now=now)
                    self._deliver(seat)
                    self._touched.add(number)
                else:
                    due = min(due, at)
            if idle_s is not None and not seat.conversation.is_evicted and number not in self._touched:
                if seat.worked_at + idle_s <= now:
                    self.core.evict(seat.conversation)
                else:
                    due = min(due, seat.worked_at + idle_s)
        return due

    def _step(self, conversations: Sequence[Conversation]) -> None:
        report = self.core.step(conversations, now=self.now(), publish=self._publish)
        with self._changed:
            for conversation, error in report.failures:
                self._fail(conversation, as_braid_error(error))
            now = self.now()
            for number in report.demanding:
                seat = self._seats.get(number)
                if seat is None:
                    continue
                seat.worked_at = now
                self._touched.add(number)  # until it says that it has nothing more to do
                if (spent := seat.spent) is not None:
                    self.abort(number, spent)
            for conversation in conversations:
                seat = self._seats.get(conversation.number)
                if seat is not None:
                    seat.changed.ring()
            if not report.worked and report.demanding:
                self._changed.wait(0.01)  # everybody waits for room or for a listener

    def _publish(self, conversations: Sequence[Conversation]) -> None:
        with self._changed:
            for conversation in conversations:
                seat = self._seats.get(conversation.number)
                if seat is not None:
                    self._deliver(seat)

    def _deliver(self, seat: Seat) -> None:
        if seat.deliver() and self.metrics is not None:
            self.metrics.consumer_paused()

    def _fail(self, conversation: Conversation, error: BraidError) -> None:
        """A session cannot go on; its client is told, the others go on."""
        seat = self._seats.get(conversation.number)
        self.core.fail(conversation, error)
        if seat is not None:
            seat.error = error
            self._deliver(seat)
            self._leave(seat)
        if self.metrics is not None:
            self.metrics.error(error.code)

    def _leave(self, seat: Seat) -> None:
        """A session is closed: its seat is free."""
        self._seats.pop(seat.conversation.number, None)
        self._touched.discard(seat.conversation.number)
        seat.leave()
        self._vacancy.ring()
        self._changed.notify_all()

    def _touch(self, number: int) -> None:
        if number in self._seats:
            self._touched.add(number)
            self._seats[number].changed.ring()
        self._changed.notify_all()

    def _wake(self, number: int) -> None:
        with self._changed:
            self._touch(number)

    def _seat(self, session: int) -> Seat:
        seat = self._seats.get(session)
        if seat is None:
            raise SessionClosedError(
                "the session is closed; open a new one (its transcript can still be saved)"
            )
        return seat

    def _require_open(self) -> None:
        if self._is_closing:
            raise EngineClosedError("the engine is shut down; make a new one")
