"""Where a session's tool calls are taken and their results handed back, while everything else goes on.

tool_call lanes ── deltas ──▶ ToolRunner ──▶ tools, several at once
tool_result     ◀── write ──────┘ in the order in which they are ready, read in the next row
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from types import TracebackType
from typing import TYPE_CHECKING, Self

import anyio
import anyio.abc

from braid.engine.backend import SessionBackend, SessionHandle
from braid.errors import InputError, RegimeError, SessionClosedError
from braid.sessions.tools.runner import ToolRunner
from braid.streams.events import DeltaEvent, Event, StateEvent

if TYPE_CHECKING:
    from braid.sessions.tools import Call, Toolbox, ToolResult

__all__ = ["ToolDesk"]


class ToolDesk:
    """Serves one session; entered and left with it. It is the `ToolPort` of its runner.

    What a call lane says is held against the end of the turn until it has been heard here, and a call that was found in
    it until its result is there: however fast the engine is, silence ends no turn over the head of a call.

    Args:
        backend, handle: The session.
        toolbox: Its tools.

    Raises:
        InputError: The topology has no stream that could call a tool.
    """

    def __init__(self, backend: SessionBackend, handle: SessionHandle, toolbox: Toolbox) -> None:
        flows = dict(handle.topology.resolved_tool_flows)
        if not flows:
            raise InputError(
                "tools were given to a session whose topology has no tool flow; add an output `tool_call` and an input "
                "`tool_result`, or name your own in `tool_flows`"
            )
        self._backend = backend
        self._handle = handle
        self._calling = frozenset(flows)
        self._runner = ToolRunner(toolbox, flows=flows, port=self)
        self._tasks: anyio.abc.TaskGroup | None = None

    @property
    def num_running(self) -> int:
        """Calls whose result has not been delivered yet."""
        return self._runner.num_running

    # ---- ToolPort

    async def deliver(self, stream: str, text: str) -> None:
        """Write a result to the input that it comes back on; it is read in the next row.

        A result is whole: the input ends with it, for this turn or until the next result, so that a turn may be over
        and outputs that wait for the end of their input may begin. One that comes late, when the next turn is only
        drafted, waits until that is committed: a draft holds what the application says, and nothing else.
        """
        try:
            await self._handle.changed.until(lambda: self._is_told(stream, text) or None)
        finally:
            self._tell("result_came")

    def _is_told(self, stream: str, text: str) -> bool:
        try:
            self._backend.push(self._handle.number, "tell", {stream: text}, [stream])
        except RegimeError:
            return False
        return True

    def began(self, call: Call) -> None:
        """A call is under way: silence does not end the turn before its result is there."""
        self._tell("await_result")

    def finished(self, call: Call, result: ToolResult) -> None:
        """A call has its result; one that was cancelled is not delivered."""
        self._backend.note_tool(result.status, result.seconds)
        if result.status == "cancelled":
            self._tell("result_came")

    def _tell(self, verb: str) -> None:
        try:
            self._backend.push(self._handle.number, verb)
        except SessionClosedError:
            return  # then nobody waits for it

    # ---- life

    async def __aenter__(self) -> Self:
        news = self._handle.listen(self._calling).events()
        await self._runner.__aenter__()
        self._tasks = anyio.create_task_group()
        await self._tasks.__aenter__()
        self._tasks.start_soon(self._listen, news)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._tasks is not None
        self._tasks.cancel_scope.cancel()
        try:
            await self._tasks.__aexit__(None, None, None)
        finally:
            await self._runner.__aexit__(None, None, None)

    async def _listen(self, news: AsyncIterator[Event]) -> None:
        async for event in news:
            if isinstance(event, DeltaEvent) and self._runner.is_fed_by(event.stream):
                self._runner.feed(event.stream, event.text)
                self._tell("result_came")  # it was held until it was heard
            elif (
                isinstance(event, StateEvent)
                and event.state in ("asleep", "closed")
                and self._runner.is_fed_by(event.stream)
            ):
                self._runner.end(event.stream)
