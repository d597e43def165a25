"""Connects a session to its tools: text of tool_call lanes in, lines of results out, nobody waits.

    event loop: feed(lane, delta) ──▶ parser of the lane ──▶ a task a call ──▶ Toolbox.run
                 └── returns at once                              │ in the order in which they are ready
                                             port.deliver ◀───────┘ one at a time a stream

A call belongs to the runner from `began` to `finished`; both are said of every call, the malformed ones too. A result
that the session refuses harms no other call; it is kept in `undelivered`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self

import anyio
import anyio.abc

from braid.errors import SessionClosedError
from braid.sessions.tools.calls import Call, CallParser, call_ids
from braid.sessions.tools.toolbox import Toolbox, ToolResult
from braid.streams.strict import hint

__all__ = ["ToolPort", "ToolRunner", "Undelivered"]

_KEPT_UNDELIVERED = 100
"""A session that refuses everything must not fill the memory with what it refused."""


class ToolPort(Protocol):
    """What a runner needs of a session. Everything is called from the event loop."""

    async def deliver(self, stream: str, text: str) -> None:
        """Write a result, a line with its line break, to an input stream."""
        ...

    def began(self, call: Call) -> None:
        """A call was read, and is under way."""
        ...

    def finished(self, call: Call, result: ToolResult) -> None:
        """A call has its result, which is delivered next; not so where its status is `cancelled` by the close."""
        ...


@dataclass(frozen=True, slots=True)
class Undelivered:
    """A result that could not be handed over, and why."""

    call: Call
    result: ToolResult
    error: Exception


class ToolRunner:
    """Runs the calls of one session while it goes on speaking.

    Args:
        toolbox: The tools; sessions may share it.
        flows: From the stream that calls to the stream that results come back on, as
            `dict(topology.resolved_tool_flows)` gives it.
        port: The session.

        async with ToolRunner(toolbox, flows={"tool_call": "tool_result"}, port=port) as runner:
            runner.feed("tool_call", delta)
            ...

    Leaving the block cancels what is still under way; `drain` first to wait for it.
    """

    def __init__(self, toolbox: Toolbox, *, flows: Mapping[str, str], port: ToolPort) -> None:
        self._toolbox = toolbox
        self._flows = dict(flows)
        self._port = port
        self._ids = call_ids()
        self._parsers: dict[str, CallParser] = {}
        # Locks serve in the order in which they are asked for, and so keep the order of completion.
        self._turns = {stream: anyio.Lock() for stream in self._flows.values()}
        self._tasks: anyio.abc.TaskGroup | None = None
        self._num_running = 0
        self._idle = anyio.Event()
        self.undelivered: deque[Undelivered] = deque(maxlen=_KEPT_UNDELIVERED)
        """The latest results that the session refused."""

    @property
    def num_running(self) -> int:
        """Calls whose result has not been delivered yet, those that wait for their turn included."""
        return self._num_running

    def is_fed_by(self, lane: str) -> bool:
        """Whether the lane's stream is one that calls tools."""
        return _stream(lane) in self._flows

    def feed(self, lane: str, text: str) -> None:
        """Take the next piece of a lane's text; calls start as soon as they are whole. Never waits.

        Args:
            lane: A lane's label, `tool_call` or `tool_call#1`.
            text: What the lane said since the last time.

        Raises:
            SessionClosedError: The runner is not entered, or left already.
        """
        tasks = self._open_tasks()
        for call in self._parser(lane).push(text):
            self._start(tasks, call)

    def end(self, lane: str) -> None:
        """Take the end of a lane's text for this turn; a call that it leaves unfinished fails.

        Raises:
            SessionClosedError: The runner is not entered, or left already.
        """
        tasks = self._open_tasks()
        for call in self._parser(lane).flush():
            self._start(tasks, call)

    async def drain(self) -> None:
        """Return when no call is under way."""
        while self._num_running:
            await self._idle.wait()

    async def __aenter__(self) -> Self:
        self._tasks = anyio.create_task_group()
        await self._tasks.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        tasks, self._tasks = self._tasks, None
        assert tasks is not None
        tasks.cancel_scope.cancel()
        if isinstance(error, anyio.get_cancelled_exc_class()):
            return await tasks.__aexit__(kind, error, trace)
        # An error of the caller's block passes as it is; the task group would wrap it in an exception group.
        await tasks.__aexit__(None, None, None)
        return None

    def _open_tasks(self) -> anyio.abc.TaskGroup:
        if self._tasks is None:
            raise SessionClosedError(
                "the tool runner is not entered; use `async with ToolRunner(…) as runner`"
            )
        return self._tasks

    def _parser(self, lane: str) -> CallParser:
        assert self.is_fed_by(lane), f"{lane} calls no tools; {hint(_stream(lane), self._flows)}"
        if lane not in self._parsers:
            self._parsers[lane] = CallParser(lane, self._ids)
        return self._parsers[lane]

    def _start(self, tasks: anyio.abc.TaskGroup, call: Call) -> None:
        self._port.began(call)
        if not self._num_running:
            self._idle = anyio.Event()
        self._num_running += 1
        tasks.start_soon(self._run, call, name=f"{call.id} {call.name}")

    async def _run(self, call: Call) -> None:
        try:
            try:
                result = await self._toolbox.run(call)
            except anyio.get_cancelled_exc_class():
                self._port.finished(
                    call, ToolResult(call.id, call.name, "cancelled", "the session was closed")
                )
                raise
            await self._hand_over(call, result)
        finally:
            self._num_running -= 1
            if not self._num_running:
                self._idle.set()

    async def _hand_over(self, call: Call, result: ToolResult) -> None:
        stream = self._flows[_stream(call.lane)]
        try:
            self._port.finished(call, result)
            async with self._turns[stream]:
                await self._port.deliver(stream, result.to_text() + "\n")
        except Exception as error:  # noqa: BLE001 - a closed stream or a full pool is no other call's fault
            self.undelivered.append(Undelivered(call, result, error))


def _stream(lane: str) -> str:
    """The stream of a lane's label."""
    return lane.partition("#")[0]
