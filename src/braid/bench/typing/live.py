"""Replay in real time: the same traces, played to a running engine through its sessions.

Forwards, tokens and answers are counted as with the simulated clock; what is added is what a person waits for: the
engine's thread, the event loop, and verbs that come while a forward is under way. `fresh` is not among the ways: its
requests are a part of the engine that sessions do not have.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any

import anyio
from anyio.abc import TaskGroup

from braid.bench.machine import describe_machine
from braid.bench.traces.file import Trace
from braid.bench.typing.machine import CountingBackend
from braid.bench.typing.run import ANSWER_TOKENS, WARM_UP, kv_tokens_for, ordered_ways, sized
from braid.bench.typing.turns import Part, Turn, TypingRun, parts_of, turn_of
from braid.engine.editing.editable import Mode
from braid.engine.loop import EngineLoop
from braid.errors import BraidError, EngineError, InputError, SessionClosedError
from braid.model.chat import Chat, Message
from braid.model.model import Model
from braid.sessions.session import Engine, Session
from braid.streams.events import Event, TurnEvent
from braid.streams.presets import topology as as_topology
from braid.streams.topology import Topology

__all__ = ["LIVE_WAYS", "run_live"]

LIVE_WAYS = ("ahead", "read-ahead", "repair", "reuse", "none", "append")
_MODES: Mapping[str, Mode] = {
    "ahead": "exact",
    "read-ahead": "exact",
    "repair": "repair",
    "reuse": "reuse",
}


def run_live(
    model: Model,
    traces: Sequence[Trace],
    *,
    ways: Sequence[str],
    topology: str | Topology = "plain",
    answer_tokens: int = ANSWER_TOKENS,
    speed: float = 1.0,
    on_trace: Callable[[int, int, str], None] | None = None,
) -> TypingRun:
    """Replay traces in real time.

    Args:
        model, traces, topology, answer_tokens, on_trace: As for `run_typing`.
        ways: Of `LIVE_WAYS`.
        speed: So many times as fast as it was typed.

    Returns:
        As `run_typing` does.

    Raises:
        InputError: There is no trace, no such way, or the speed is not above 0.
        EngineError: No trace could be replayed.
    """
    if not traces:
        raise InputError("there is no trace to replay")
    if not 0 < speed < float("inf"):
        raise InputError(f"the speed is {speed:g}; it is a number above 0, and 1 is as it was typed")
    if wrong := [way for way in ways if way not in LIVE_WAYS]:
        raise InputError(f"{wrong[0]} is not played in real time; there are {', '.join(LIVE_WAYS)}")
    chosen = ordered_ways(ways)
    streams = sized(as_topology(topology), answer_tokens)
    name = streams.name or "a topology of your own"
    run = TypingRun(model.name, name, answer_tokens, f"{speed:g} × as fast as typed", chosen)
    room = kv_tokens_for(model, traces, answer_tokens)
    with contextlib.suppress(KeyboardInterrupt):
        run.is_complete = False
        anyio.run(_play_all, model, traces, run, streams, room, speed, on_trace)
        run.is_complete = True
    run.require_traces()
    run.machine = describe_machine()
    return run


async def _play_all(
    model: Model,
    traces: Sequence[Trace],
    run: TypingRun,
    topology: Topology,
    room: int,
    speed: float,
    on_trace: Callable[[int, int, str], None] | None,
) -> None:
    async with AsyncExitStack() as engines:
        players: dict[str, _Player] = {}
        for way in run.ways:
            backend = CountingBackend(model, kv_tokens=room)
            engine = await engines.enter_async_context(Engine.over(EngineLoop(backend)))
            players[way] = _Player(way, engine, backend, topology, speed)
        for player in players.values():
            await player.play(WARM_UP)
        for number, trace in enumerate(traces):
            if on_trace is not None:
                on_trace(number, len(traces), trace.id)
            try:
                run.add(trace, await _in_all_ways(players, trace))
            except BraidError as error:  # an hour of other traces is not lost with it
                run.failures[trace.id] = str(error)


async def _in_all_ways(players: Mapping[str, _Player], trace: Trace) -> dict[str, list[Turn] | None]:
    found: dict[str, list[Turn] | None] = {}
    for way, player in players.items():
        is_asked = way not in ("repair", "reuse") or trace.meta.last_edit == "middle"
        try:
            found[way] = await player.play(trace) if is_asked else None
        except BraidError as error:
            raise EngineError(f"{trace.id}, {way}: {error}") from error
    return found


class _Player:
    """One way to answer, on an engine of its own."""

    def __init__(
        self, way: str, engine: Engine, backend: CountingBackend, topology: Topology, speed: float
    ) -> None:
        self._way, self._engine, self._backend = way, engine, backend
        self._topology, self._speed = topology, speed
        self._stream = topology.input_names[0]
        self._num_counted = 0
        """Forwards of this trace that belong to turns that are over."""
        self._listener: _Listener

    async def play(self, trace: Trace) -> list[Turn]:
        """Play a trace."""
        self._backend.forwards.clear()
        self._num_counted = 0
        turns: list[Turn] = []
        history: list[Message] = []
        failure: BraidError | None = None
        async with anyio.create_task_group() as tasks:
            self._listener = await self._open(tasks, history)
            began = time.perf_counter()
            try:
                for part in parts_of(trace):
                    turn = await self._turn(tasks, part, began, history)
                    turns.append(turn)
                    history += [Message("user", part.text), Message("assistant", turn.answer)]
            except BraidError as error:  # raised below, outside the group, which would wrap it
                failure = error
            await self._listener.close()
        if failure is not None:
            raise failure
        return turns

    async def _open(self, tasks: TaskGroup, history: Sequence[Message]) -> _Listener:
        settings: dict[str, Any] = {}
        if self._way == "read-ahead":
            settings["most_drafted"] = 0
        if history:
            settings["chat"] = Chat(tuple(history))
        session = self._engine.open(self._topology, **settings)
        await session.__aenter__()
        listener = _Listener(session)
        tasks.start_soon(listener.listen)
        return listener

    async def _turn(self, tasks: TaskGroup, part: Part, began: float, history: Sequence[Message]) -> Turn:
        first_forward, written = self._num_counted, ""
        edited_at = first_forward
        coming = deque(part.events)
        while coming:
            at, text = coming.popleft()
            if coming and began + coming[0][0] / self._speed <= time.perf_counter():
                continue  # a newer one has come already
            await _until(began + at / self._speed)
            edited_at = len(self._backend.forwards)
            if self._way in _MODES:
                await self._listener.session.snapshot({self._stream: text}, mode=_MODES[self._way])
            elif self._way == "append":
                if not text.startswith(written):
                    await self._listener.close()
                    self._listener, written = await self._open(tasks, history), ""
                await self._listener.session.write(self._stream, text[len(written) :])
                written = text
        await _until(began + part.commit_at / self._speed)
        committed_at = began + part.commit_at / self._speed
        listener = self._listener
        before, number = len(listener.heard), listener.num_turns
        await self._commit(listener, part)
        await listener.wait_for_turn(number)
        news = [(at, event) for at, event in listener.heard[before:] if at >= committed_at]
        over_at = news[-1][0] if news else time.perf_counter()
        self._num_counted = len(self._backend.forwards)
        return turn_of(
            part,
            self._topology,
            news,
            self._backend.forwards[first_forward : self._num_counted],
            committed_at=committed_at,
            over_at=over_at,
            num_before_edit=edited_at - first_forward,
        )

    async def _commit(self, listener: _Listener, part: Part) -> None:
        session = listener.session
        if self._way in _MODES:
            await session.commit()
        elif self._way == "append":
            await session.end()
        else:
            await session.tell({self._stream: part.text})


class _Listener:
    """A session, and all that it tells, with the second in which it did."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.heard: list[tuple[float, Event]] = []
        self.num_turns = 0
        self._changed = anyio.Event()

    async def listen(self) -> None:
        """Take what is told until the session is closed."""
        async for event in self.session:
            self.heard.append((time.perf_counter(), event))
            if isinstance(event, TurnEvent):
                self.num_turns += 1
                self._ring()
        self._ring()

    async def wait_for_turn(self, number: int) -> None:
        """Return when more turns than this are over.

        Raises:
            BraidError: The session has ended before.
        """
        while self.num_turns <= number:
            if self.session.is_closed:
                raise self.session.error or SessionClosedError("the session was closed before its answer")
            await self._changed.wait()

    async def close(self) -> None:
        """Close the session."""
        await self.session.close()

    def _ring(self) -> None:
        bell, self._changed = self._changed, anyio.Event()
        bell.set()


async def _until(moment: float) -> None:
    await anyio.sleep(max(0.0, moment - time.perf_counter()))
