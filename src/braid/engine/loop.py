"""The engine by itself: one thread that steps while anybody has something to do, and sleeps while nobody has.

    event loops, other threads                 the engine's thread
    push("write", …) ── verb, at once ──┐      while there are sessions:
    look()                              ├──▶       wait for a verb or a deadline
    fork(), evict() ── between steps ───┘          EngineCore.step(those with something to do)
    events()  ◀── mailbox ── news ◀─────────────   deliver what is new, before and after the forward

The thread begins with the first session and ends with the last one. It implements `SessionBackend`.
"""

from __future__ import annotations

import atexit
import math
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, TypeVar

import anyio

from braid.engine.admission import Admission, EngineLimits
from braid.engine.backend import Backend, Capabilities, Dropped, Op, SessionBackend
from braid.engine.core import EngineCore, as_braid_error
from braid.engine.editing.checking import CHECK_SHARE
from braid.engine.guessing.drafter import CONCERNING, Drafter
from braid.engine.journal import Journal
from braid.engine.ledger import lead_through
from braid.engine.mailbox import Bell
from braid.engine.scheduler import SchedulerPolicy
from braid.engine.seat import Seat
from braid.engine.session.conversation import Conversation
from braid.engine.session.starts import require_supported
from braid.engine.tracing import NO_TRACER, Tracer
from braid.errors import BraidError, SessionClosedError
from braid.streams.topology import Topology

if TYPE_CHECKING:
    from braid.engine.metrics import EngineMetrics, ToolStatus
    from braid.streams.transcript import Transcript

__all__ = ["EngineLoop"]

PATIENCE_S = 0.05
"""How often sessions are looked at that wait for room in the cache, or for a listener that may have left."""

EXIT_S = 10.0
"""How long the end of the process waits for a forward that is under way."""

GIVE_WAY_S = 0.0002
"""How long a forward waits for each session whose news is told to a client by somebody else's thread.

Python runs one thread at a time, and the first milliseconds of a forward are mostly Python: without the wait, sixteen
clients hear of a row while the next one is being computed, with it before.
"""

GIVE_WAY_MOST_S = 0.005

Value = TypeVar("Value")


def give_way(num_told: int) -> None:
    """Leave the interpreter to whoever tells the news of so many sessions."""
    if num_told:
        time.sleep(min(num_told * GIVE_WAY_S, GIVE_WAY_MOST_S))


running: weakref.WeakSet[EngineLoop] = weakref.WeakSet()
"""Those that have, or had, a thread."""


def halt_all() -> None:
    """End every engine's thread before the interpreter goes."""
    for loop in list(running):
        loop.halt()


atexit.register(halt_all)


class EngineLoop:
    """Drives a backend for any number of sessions.

    Args:
        backend: What computes.
        policy: Of the scheduler.
        limits: How much it takes on.
        journal, metrics, tracer, check_share: As for `EngineCore`.
        drafter: The engine of a smaller model, which drafts for this one; see `braid.engine.guessing.drafter`.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        policy: SchedulerPolicy | None = None,
        limits: EngineLimits | None = None,
        journal: Journal | None = None,
        metrics: EngineMetrics | None = None,
        tracer: Tracer = NO_TRACER,
        check_share: float = CHECK_SHARE,
        drafter: SessionBackend | None = None,
    ) -> None:
        self.core = EngineCore(
            backend, policy=policy, journal=journal, metrics=metrics, tracer=tracer, check_share=check_share
        )
        self.limits = limits or EngineLimits()
        self.metrics = metrics
        self._changed = threading.Condition(self.core.lock)
        self._drafter = None if drafter is None else Drafter(self, self.core.lock, drafter)
        self._seats: dict[int, Seat] = {}
        self._touched: set[int] = set()
        """Sessions that may have something to do."""
        self._held: dict[int, float] = {}
        """Sessions whose drafts wait, and until when; a verb may touch them before."""
        self._commands: deque[Callable[[], None]] = deque()
        self._thread: threading.Thread | None = None
        self._admission = Admission(self.limits)
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
            CheckpointConflictError, UnsupportedByBackend, UnsupportedModelError, SamplingError, InputError: As `start`
                would.
        """
        settled = self.core.backend.settle(topology)
        silence = self.core.backend.model.silence_token_id
        require_supported(settled, self.capabilities(), settings.get("predicates") or {}, silence)
        settled.lanes(settings.get("copies"))
        return settled

    def warm(self, topology: Topology) -> None:
        """Compile what the topology's streams are held to, which may take a second; `start` finds it compiled then.

        Raises:
            SamplingError: A grammar cannot be compiled.
        """
        grammars = self.core.backend.model.grammars
        for spec in topology.streams.values():
            if spec.grammar is not None:
                grammars.compile(spec.grammar, at_start=spec.prefix is None)

    async def admit(self) -> None:
        """Wait for a seat; `start` takes it, `decline` gives it back.

        Raises:
            EngineBusyError: Too many wait already, or none came free in time.
            EngineClosedError: The engine is shut down.
        """
        await self._admission.enter()

    def decline(self) -> None:
        """Give back a seat that was promised."""
        self._admission.give_back()

    def start(self, topology: Topology, settings: Mapping[str, Any] | None = None) -> Seat:
        """Open a session on a seat that was promised by `admit`, or on a free one.

        Args:
            topology: The streams.
            settings: Further arguments of `EngineCore.open`; with `ledger`, the lines of one that goes on.

        Raises:
            EngineBusyError: There is no free seat.
            EngineClosedError: The engine is shut down.
            BraidError: What opening raises.
        """
        with self._changed:
            self._admission.require_seat()
            self._require_thread()
            given: dict[str, Any] = {"max_queued": self.limits.max_queued, **(settings or {})}
            return self._take_seat(self.core.open(topology, now=self.now(), **given))

    def recount(self, topology: Topology, settings: Mapping[str, Any]) -> Transcript:
        """The transcript of the session that a ledger tells of; no session is opened, and nobody has to wait.

        Args:
            topology, settings: As for `start`, with the lines under `ledger`.

        Raises:
            TranscriptCorruptError: The lines are damaged, or of another model.
        """
        given: dict[str, Any] = {"max_queued": self.limits.max_queued, **settings}
        lines = given.pop("ledger")
        given.pop("guesses", None)  # which decide nothing of it

        def apply(ops: Sequence[Op]) -> list[int]:
            return [0] * len(ops)

        return lead_through(
            self.core.backend, topology, lines, number=-1, apply=apply, settings=given
        ).transcript

    def _take_seat(self, conversation: Conversation) -> Seat:
        number = conversation.number
        seat = Seat(
            conversation,
            self.core.lock,
            self.limits.max_events,
            wake=lambda: self._wake(number),
            hold=lambda: self.core.do(conversation, "await_result"),
        )
        if self._drafter is not None and not conversation.is_closed:
            # One suggestion, of nothing, so that guesses are followed from the beginning.
            for lane in conversation.stage.open_outputs()[:1]:
                self.core.do(conversation, "suggest", lane.label, "", False)
        seat.worked_at = self.now()
        self._admission.take()
        self._seats[number] = seat
        self._touch(number)
        self._count_sessions()
        return seat

    def _require_thread(self) -> None:
        """Have a thread; it ends by itself when nobody takes a seat."""
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="braid-engine", daemon=True)
            thread.start()  # before it is noted, for it may fail; it waits for the lock
            self._thread = thread
            running.add(self)

    def halt(self) -> None:
        """Close all sessions and wait for the forward that is under way, as the process ends.

        A thread that the interpreter tears down within a native call takes the whole process with it (SIGABRT).
        """
        self._admission.close()
        if self._drafter is not None:
            self._drafter.halt()
        with self._changed:
            thread = self._thread
            for number in list(self._seats):
                self.abort(number, "shutdown")
            self.core.checks.close()
            self._changed.notify_all()
        if thread is not None and thread is not threading.current_thread():
            thread.join(EXIT_S)

    def _count_sessions(self) -> None:
        if self.metrics is not None:
            evicted = sum(seat.conversation.is_evicted for seat in self._seats.values())
            states = {
                "open": len(self._seats) - evicted,
                "evicted": evicted,
                "waiting": self._admission.num_waiting,
            }
            self.metrics.sessions(states)

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
            if self._drafter is not None and verb in CONCERNING:
                self._drafter.heard(seat.conversation)
            self._deliver(seat)
            if seat.conversation.is_closed:
                self._leave(seat)
            self._touch(session)
            return value

    def _set_deadline(self, seat: Seat, verb: str, arguments: Sequence[Any]) -> None:
        """Text that `write` holds back is fed when the stream's latency is over."""
        stream: str | None = arguments[0] if arguments else None
        if verb == "write" and stream is not None:
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

    def note_tool(self, status: ToolStatus, seconds: float) -> None:
        """Count a tool call that is over."""
        if self.metrics is not None:
            self.metrics.tool_call(status, seconds)

    def note_drafter_error(self, error: BraidError) -> None:
        """Count what went wrong where a smaller model drafts for this one."""
        if self.metrics is not None:
            self.metrics.drafter_error(error.code)

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
        self._require_thread()
        return self._take_seat(self.core.fork(self._seat(session).conversation))

    async def evict(self, session: int) -> None:
        """Give the session's cache back; it is refilled from the transcript when there is something to do."""
        await self._between(lambda: self._evict(self._seat(session).conversation))

    def _evict(self, conversation: Conversation) -> None:
        self.core.evict(conversation)
        self._count_sessions()

    async def _between(self, command: Callable[[], Value]) -> Value:
        """Run a command between two steps: in the engine's thread, or here where there is none."""
        future: Future[Value] = Future()
        done = Bell()

        def run() -> None:
            try:
                future.set_result(command())
            except BaseException as error:  # noqa: BLE001 (raised to whoever waits)
                future.set_exception(error)
            done.ring()

        with self._changed:
            if self._thread is None:
                run()
            else:
                self._commands.append(run)
                self._changed.notify_all()
        with anyio.CancelScope(shield=True):  # it will be run, and what it makes must be known
            await done.until(lambda: future.done() or None)
        return future.result()

    async def aclose(self, *, drain: bool = True, timeout_s: float = 30.0) -> list[Dropped]:
        """Shut down: admit nobody, let turns that are under way finish, close all sessions, give the cache back.

        Args:
            drain: Whether to wait for turns at all.
            timeout_s: How long.

        Returns:
            What was left undone, by session; empty when everything was finished.
        """
        self._admission.close()
        with anyio.move_on_after(timeout_s if drain else 0):
            for seat in list(self._seats.values()):
                await seat.changed.until(lambda seat=seat: self._is_at_rest(seat) or None)
        dropped: list[Dropped] = []
        with anyio.CancelScope(shield=True):
            dropped = await self._between(self._close_all)
        return dropped  # noqa: RET504 (the scope might swallow, as far as a checker can tell)

    @staticmethod
    def _is_at_rest(seat: Seat) -> bool:
        return seat.conversation.is_closed or seat.conversation.turn_is_over

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
        try:
            while (conversations := self._next()) is not None:
                try:
                    self._step(conversations)
                except Exception as error:  # noqa: BLE001 (nobody is there to raise to: the sessions are told)
                    with self._changed:
                        for conversation in conversations:
                            self._fail(conversation, as_braid_error(error))
        except BaseException as error:  # noqa: BLE001
            self._give_up(as_braid_error(error))

    def _next(self) -> list[Conversation] | None:
        """Those that may have something to do, once there are any; None when the last session has ended.

        Nobody, where there is but something to be done when nobody waits.
        """
        with self._changed:
            busy = self._wait()
            if busy is None:
                self._thread = None
                return None
            return [self._seats[number].conversation for number in sorted(busy)]

    def _give_up(self, error: BraidError) -> None:
        """The engine itself has failed, as when its journal cannot be written: all sessions end, and nobody waits."""
        with self._changed:
            self._thread = None
            self.core.journal = None
            self.core.checks.close()
            for seat in list(self._seats.values()):
                self._fail(seat.conversation, error)
            while self._commands:
                self._commands.popleft()()

    def _wait(self) -> set[int] | None:
        """Sleep until there is something to do, and say for whom; None when there is nobody any more."""
        while True:
            while self._commands:
                self._commands.popleft()()
            due = self._do_what_is_due()
            paused = {number for number in self._touched if self._seats[number].is_paused}
            busy = self._touched - paused
            if busy or self.core.checks.has_work:
                self._touched = paused
                return busy
            if not self._seats:
                return None
            if paused:  # a listener that is dropped says nothing
                due = min(due, self.now() + PATIENCE_S)
            self._changed.wait(None if due == math.inf else max(0.0, due - self.now()))

    def _do_what_is_due(self) -> float:
        """Feed held text that is overdue, rest sessions that idle; returns when the next thing is due."""
        now = self.now()
        for number in [number for number, at in self._held.items() if at <= now]:
            del self._held[number]
            self._touch(number)
        due = min(self._held.values(), default=math.inf)
        for seat in list(self._seats.values()):
            try:
                due = min(due, self._flush_overdue(seat, now), self._rest_idle(seat, now))
            except BraidError as error:
                self._fail(seat.conversation, error)
        return due

    def _flush_overdue(self, seat: Seat, now: float) -> float:
        for stream in [stream for stream, at in seat.flush_at.items() if at <= now]:
            del seat.flush_at[stream]
            self.core.do(seat.conversation, "flush", stream, now=now)
            self._deliver(seat)
            self._touch(seat.number)
        return min(seat.flush_at.values(), default=math.inf)

    def _rest_idle(self, seat: Seat, now: float) -> float:
        idle_s = self.limits.evict_idle_after_s
        has_plans = seat.number in self._touched or seat.number in self._held
        if idle_s is None or has_plans or not seat.conversation.kv_tokens:
            return math.inf
        if seat.worked_at + idle_s > now:
            return seat.worked_at + idle_s
        self._evict(seat.conversation)
        return math.inf

    def _step(self, conversations: Sequence[Conversation]) -> None:
        report = self.core.step(conversations, now=self.now(), publish=self._publish)
        with self._changed:
            for conversation, error in report.failures:
                self._fail(conversation, as_braid_error(error))
            now = self.now()
            for conversation in conversations:
                self._held.pop(conversation.number, None)
            self._held |= {number: at for number, at in report.held.items() if number in self._seats}
            for number in report.demanding:
                if number in self._seats:
                    self._seats[number].worked_at = now
                    self._touched.add(number)  # until it says that it has nothing more to do
            for conversation in conversations:
                seat = self._seats.get(conversation.number)
                if seat is not None:
                    seat.changed.ring()
                    if seat.spent is not None:
                        self.abort(seat.number, seat.spent)
            if not report.worked and len(report.demanding) > len(report.released):
                self._changed.wait(PATIENCE_S)  # everybody waits for room

    def _publish(self, conversations: Sequence[Conversation]) -> None:
        num_told = 0
        with self._changed:
            for conversation in conversations:
                seat = self._seats.get(conversation.number)
                if seat is not None:
                    self._deliver(seat)
                    num_told += seat.is_told
        give_way(num_told)

    def _deliver(self, seat: Seat) -> None:
        if seat.deliver() and self.metrics is not None:
            self.metrics.slow_consumer("paused")

    def _fail(self, conversation: Conversation, error: BraidError) -> None:
        """A session cannot go on; its client is told, the others go on."""
        seat = self._seats.get(conversation.number)
        self.core.fail(conversation, error)
        if seat is not None:
            self._deliver(seat)
            self._leave(seat)
        if self.metrics is not None:
            self.metrics.error(error.code)

    def _leave(self, seat: Seat) -> None:
        """A session is closed: its seat is free."""
        self._seats.pop(seat.conversation.number, None)
        self._touched.discard(seat.conversation.number)
        self._held.pop(seat.conversation.number, None)
        seat.leave()
        if self._drafter is not None:
            self._drafter.heard(seat.conversation)
        self._count_sessions()
        self._admission.leave()
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
