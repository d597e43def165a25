"""A live engine without a network to test on, which must leave nothing behind: no thread, no session, no page."""

from __future__ import annotations

import gc
import threading
from collections.abc import AsyncIterator, Mapping
from types import TracebackType
from typing import Any, Self

import anyio
import anyio.lowlevel

from braid.engine.admission import EngineLimits
from braid.engine.backend import Item
from braid.engine.journal import Journal
from braid.engine.loop import EngineLoop
from braid.engine.scheduler import SchedulerPolicy
from braid.sessions.session import Engine, Session
from braid.streams.events import Event, RowEvent
from braid.streams.topology import StreamSpec, Topology
from braid.testing import NullBackend, NullModel
from tests.engine.harness import SILENCE, codec


def spec(direction: str = "output", **settings: Any) -> StreamSpec:
    return StreamSpec(direction=direction, **settings)  # pyright: ignore[reportArgumentType]


def rows(streams: Mapping[str, StreamSpec] | None = None, **settings: Any) -> Topology:
    """Native rows; by default a user and an output that never ends."""
    return Topology(streams=streams or {"user": spec("input"), "output": spec()}, **settings)


def views(**output: Any) -> Topology:
    """Views of a stock model; the output never ends unless it is told to."""
    return Topology(decoding="views", streams={"user": spec("input"), "output": spec(wait_k="end", **output)})


class Gate:
    """Holds every forward until it is opened, or lets so many through; the `fail` of a null backend."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._is_open = False
        self._passes = 0
        self._num_held = 0

    def __call__(self, item: Item) -> None:
        with self._changed:
            self._num_held += 1
            self._changed.wait_for(lambda: self._is_open or self._passes)
            self._num_held -= 1
            if not self._is_open:
                self._passes -= 1

    def let(self, count: int) -> None:
        """Let so many items through."""
        with self._changed:
            self._passes += count
            self._changed.notify_all()

    def open(self) -> None:
        with self._changed:
            self._is_open = True
            self._changed.notify_all()

    def shut(self) -> None:
        with self._changed:
            self._is_open = False

    async def reached(self) -> None:
        """Wait until a forward is held here."""
        await eventually(lambda: self._num_held)


class House:
    """An engine over a null backend.

    Args:
        limits, policy, journal: Of the engine.
        silence: Whether the model has a silence class.
        backend: Arguments of `NullBackend`.
    """

    def __init__(
        self,
        *,
        limits: EngineLimits | None = None,
        policy: SchedulerPolicy | None = None,
        journal: Journal | None = None,
        silence: bool = True,
        **backend: Any,
    ) -> None:
        model = NullModel(codec(), silence_token_id=SILENCE if silence else None)
        self._gate = backend.get("fail")
        self.backend = NullBackend(model, **backend)
        self.loop = EngineLoop(self.backend, limits=limits, policy=policy, journal=journal)
        self.engine = Engine.over(self.loop)

    def open(self, topology: Topology | None = None, **settings: Any) -> Session:
        return self.engine.open(topology or rows(), **settings)

    async def __aenter__(self) -> Self:
        self._tasks = {task.id for task in anyio.get_running_tasks()}
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(self._gate, Gate):
            self._gate.open()  # a test that failed leaves nothing behind either
        with anyio.CancelScope(shield=True):
            await self.engine.aclose(drain=False)
            if error is None:
                await self.is_empty()

    async def is_empty(self) -> None:
        """See to it that nothing is left: no thread, no task, no page, no session."""
        await eventually(lambda: {task.id for task in anyio.get_running_tasks()} <= self._tasks)
        await eventually(lambda: not engine_threads())
        self.backend.pool.check_integrity()
        assert self.backend.pool.num_used == 0
        assert not self.loop.core.conversations


def engine_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "braid-engine"]


async def eventually(holds: Any, seconds: float = 60.0) -> None:
    """Wait until something holds; it is asked often, on the event loop."""
    with anyio.fail_after(seconds):
        while not holds():  # noqa: ASYNC110 (what the engine's thread does sets no event)
            await anyio.sleep(0.002)


async def say(session: Session, text: str = "hello", stream: str = "user") -> None:
    """Write a whole input."""
    await session.write(stream, text)
    await session.end(stream)


async def rows_reach(session: Session, count: int) -> None:
    await eventually(lambda: session.rows >= count)


async def is_still(session: Session) -> bool:
    """Whether the session makes no rows for a while."""
    before = session.rows
    for _ in range(20):
        await anyio.sleep(0.005)
        if session.rows != before:
            return False
    return True


async def heard(session: Session) -> list[Event]:
    """All events until the session is closed."""
    return [event async for event in session]


async def take(events: AsyncIterator[Event], count: int) -> list[Event]:
    return [await anext(events) for _ in range(count)]


def row_times(events: list[Event]) -> list[int]:
    return [event.t for event in events if isinstance(event, RowEvent)]


def alive(kind: type) -> int:
    """How many objects of a class are left."""
    gc.collect()
    return sum(isinstance(thing, kind) for thing in gc.get_objects())
