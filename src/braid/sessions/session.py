"""A live session: write while it speaks, and iterate over what happens."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from types import TracebackType
from typing import Self

import anyio
import anyio.abc
import anyio.from_thread
import anyio.lowlevel
import anyio.to_thread

from braid.engine.conversation import Conversation
from braid.engine.core import EngineCore
from braid.errors import BraidError, SessionClosedError
from braid.model.model import Model
from braid.sessions.generate import Result, result_of, with_sampling
from braid.streams.events import ErrorEvent, Event
from braid.streams.presets import topology as as_topology
from braid.streams.sampling import SamplingSpec
from braid.streams.topology import Topology
from braid.streams.transcript import Transcript

__all__ = ["Engine", "Session"]


class Engine:
    """A model with a cache, on which sessions are opened.

    Args:
        model: From `braid.load`.
        kv_tokens: Tokens that the cache must hold; None chooses.
    """

    def __init__(self, model: Model, *, kv_tokens: int | None = None) -> None:
        self.core = EngineCore(model, kv_tokens=kv_tokens)
        self._turnstile = anyio.CapacityLimiter(1)  # one forward at a time, whichever session it is for

    def open(
        self,
        topology: str | Topology,
        *,
        seed: int = 0,
        copies: Mapping[str, int] | None = None,
        sampling: SamplingSpec | Mapping[str, SamplingSpec] | None = None,
    ) -> Session:
        """A session, to be entered with `async with`.

        Args:
            topology: A preset's name, a YAML file or a `Topology`.
            seed: As for `braid.generate`.
            copies: As for `braid.generate`.
            sampling: As for `braid.generate`.

        Raises:
            TopologyError, CheckpointConflictError, UnsupportedByBackend
        """
        chosen = with_sampling(as_topology(topology), sampling)
        conversation = Conversation(self.core.model, self.core.cache, chosen, seed=seed, copies=copies)
        return Session(self.core, conversation, self._turnstile)


class Session:
    """One client's live conversation. Every verb takes effect in the next row.

    Steps run in a worker thread while the session is entered; the event loop is never blocked by a forward.

        async with Engine(model).open("think-aloud") as session:
            await session.write("user", "Sally has 3 apples.")
            await session.end("user")
            async for event in session:
                ...
    """

    def __init__(
        self, core: EngineCore, conversation: Conversation, turnstile: anyio.CapacityLimiter
    ) -> None:
        self._core = core
        self._conversation = conversation
        self._turnstile = turnstile
        self._events: deque[Event] = deque()
        self._news = anyio.Event()
        self._wake = anyio.Event()
        self._tasks: anyio.abc.TaskGroup | None = None
        self._flush_at: dict[str, float] = {}
        self._began = time.perf_counter()
        self.max_rows: int | None = None
        """Rows after which the session closes by itself, once the forward that reaches them is done."""
        self.max_turns: int | None = None
        """Turns after which the session closes by itself."""
        self.error: BraidError | None = None
        """What ended the session from inside, such as a full pool; clients see it as an `ErrorEvent`."""

    # ---- verbs

    async def write(self, stream: str, text: str) -> None:
        """Add text to an input stream.

        Trailing text that could still merge with what follows is held back, until a boundary, `end`, or, where
        the stream has `max_latency_ms`, until that time is over.

        Raises:
            DirectionError, UnknownStreamError, StreamClosedError, SessionClosedError
        """
        await self._do(lambda: self._conversation.write(stream, text))
        latency_ms = self._conversation.topology.streams[stream].max_latency_ms
        if latency_ms is not None:
            self._flush_at[stream] = time.perf_counter() + latency_ms / 1000

    async def end(self, stream: str | None = None) -> None:
        """Say that an input, or every one, is complete for this turn.

        Raises:
            EmptyInputError: No input has any text in this turn; the session goes on.
        """
        await self._do(lambda: self._conversation.end(stream))

    async def interrupt(self, stream: str | None = None) -> None:
        """Force the end token of an output that speaks, or of all."""
        await self._do(lambda: self._conversation.interrupt(stream))

    async def cancel(self, stream: str | None = None) -> None:
        """Put an output to sleep, or all, without an end token."""
        await self._do(lambda: self._conversation.cancel(stream))

    async def force(self, stream: str, text: str | None = None) -> None:
        """Make an output speak: `text`, or what the model chooses with silence masked once."""
        await self._do(lambda: self._conversation.force(stream, text))

    async def close_stream(self, stream: str) -> None:
        """Close one stream for good; its pages are free at once."""
        self._flush_at.pop(stream, None)
        await self._do(lambda: self._conversation.close_stream(stream))

    async def close(self, reason: str = "closed") -> None:
        """Close the session; harmless when repeated. Iterators end after the last event, which states the reason."""
        with self._core.lock:
            self._conversation.close(reason)
        self._publish()
        self._wake.set()

    # ---- asking

    @property
    def transcript(self) -> Transcript:
        """The canonical record so far."""
        return self._conversation.transcript

    @property
    def turn_is_over(self) -> bool:
        """Whether no turn is under way."""
        return self._conversation.turn_is_over

    @property
    def rows(self) -> int:
        """Rows made so far."""
        return self._conversation.t

    @property
    def rows_due(self) -> int:
        """Rows made so far, and those that the input which waits will take at most."""
        with self._core.lock:
            return self._conversation.t + self._conversation.num_queued

    @property
    def kv_tokens(self) -> int:
        """Tokens that the cache keeps for this session."""
        with self._core.lock:
            return self._conversation.kv_tokens

    @property
    def is_closed(self) -> bool:
        """Whether the session has ended."""
        return self._conversation.is_closed

    def text(self, stream: str) -> str:
        """All that a stream has held so far, of all turns."""
        return self.transcript.text(stream)

    def result(self) -> Result:
        """The run so far, as `braid.generate` gives it."""
        return result_of(self._conversation, self._core, time.perf_counter() - self._began)

    async def wait_for_turn(self) -> None:
        """Return when the turn under way is over, or the session closed."""
        while not (self._conversation.turn_is_over or self._conversation.is_closed):
            await self._news.wait()

    def __aiter__(self) -> AsyncIterator[Event]:
        return self._iterate()

    async def _iterate(self) -> AsyncIterator[Event]:
        while True:
            while self._events:
                yield self._events.popleft()
            if self._conversation.is_closed:
                return
            await self._news.wait()

    # ---- life

    async def __aenter__(self) -> Self:
        self._tasks = anyio.create_task_group()
        await self._tasks.__aenter__()
        self._tasks.start_soon(self._pump)
        self._publish()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        assert self._tasks is not None
        self._tasks.cancel_scope.cancel()
        is_cancelled = isinstance(error, anyio.get_cancelled_exc_class())
        try:
            if is_cancelled:
                return await self._tasks.__aexit__(kind, error, trace)
            # An error of the caller's block passes as it is; the task group would wrap it in an exception group.
            await self._tasks.__aexit__(None, None, None)
            return None
        finally:
            await self.close()

    async def _do(self, verb: Callable[[], object]) -> None:
        """Apply a verb between two forwards, and let the pump know."""
        if self._tasks is None:
            raise SessionClosedError(
                "the session has not been entered; use `async with engine.open(…) as session`"
            )
        with self._core.lock:
            verb()
        self._publish()
        self._wake.set()
        await anyio.lowlevel.checkpoint()

    async def _pump(self) -> None:
        """Step while there is anything to do, sleep while there is not."""
        while not self._conversation.is_closed:
            self._wake = anyio.Event()
            try:
                self._flush_overdue()
                worked = await anyio.to_thread.run_sync(self._step, limiter=self._turnstile)
            except BraidError as error:
                self.error = error
                self._events.append(ErrorEvent(code=error.code, message=str(error)))
                await self.close(error.code)
                return
            self._publish()
            spent = self._spent()
            if spent is not None:
                await self.close(spent)
            elif not worked:
                await self._sleep()

    def _spent(self) -> str | None:
        """Which limit the session has reached."""
        if self.max_turns is not None and self._conversation.turn >= self.max_turns:
            return "max_turns"
        return "max_rows" if self.max_rows is not None and self.rows >= self.max_rows else None

    async def _sleep(self) -> None:
        """Until a verb, or until held text is overdue."""
        due = min(self._flush_at.values(), default=None)
        if due is None:
            await self._wake.wait()
            return
        with anyio.move_on_after(max(0.0, due - time.perf_counter())):
            await self._wake.wait()

    def _flush_overdue(self) -> None:
        now = time.perf_counter()
        for stream in [name for name, due in self._flush_at.items() if due <= now]:
            del self._flush_at[stream]
            with self._core.lock:
                self._conversation.flush(stream)

    def _step(self) -> bool:
        """One step, in the worker thread; events go out as they come."""
        worked = False
        for events in self._core.step([self._conversation]):
            worked = True
            self._events.extend(events)
            anyio.from_thread.run_sync(self._publish)
        with self._core.lock:
            return worked or self._conversation.has_work

    def _publish(self) -> None:
        """Hand waiting iterators whatever is new."""
        with self._core.lock:
            self._events.extend(self._conversation.take_events())
        news, self._news = self._news, anyio.Event()
        news.set()
