"""The calls that a session's model makes of functions that the client runs.

    tool_call lanes ── text ──▶ parsers ──▶ open calls ── result ──▶ answered
                                    └── malformed, unknown name ──▶ answered at once, with what is wrong

Ids count in the order in which calls are found, so the same events give the same ids after a restart.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from braid.errors import NotFoundError
from braid.sessions.tools.calls import Call, CallParser, call_ids
from braid.sessions.tools.toolbox import ToolResult
from braid.streams.entries import Row
from braid.streams.events import DeltaEvent, Event, StateEvent
from braid.streams.strict import hint

__all__ = ["CallBook"]


class CallBook:
    """Who was called, and what is answered.

    Args:
        flows: From the stream that calls to the one that results come back on.
        names: Of the functions that the client runs.
        answered: Ids of calls that have their results.
    """

    def __init__(self, flows: Mapping[str, str], names: Sequence[str], answered: Iterable[str] = ()) -> None:
        self._flows = dict(flows)
        self._names = tuple(names)
        self._ids = call_ids()
        self._parsers: dict[str, CallParser] = {}
        self.answered: dict[str, None] = dict.fromkeys(answered)
        """In the order in which they were."""
        self.open: dict[str, Call] = {}
        """Calls that wait for a result."""

    def hear(self, event: Event | Row) -> list[Call]:
        """Take the next event; returns the calls that it completes, which are open now unless they were answered."""
        if isinstance(event, DeltaEvent) and self._is_calling(event.stream):
            calls = self._parser(event.stream).push(event.text)
        elif (
            isinstance(event, StateEvent)
            and event.state in ("asleep", "closed")
            and self._is_calling(event.stream)
        ):
            calls = self._parser(event.stream).flush()
        else:
            return []
        for call in calls:
            if call.id not in self.answered:
                self.open[call.id] = call
        return calls

    def fault(self, call: Call) -> ToolResult | None:
        """Why a call cannot be run by anybody; None where it can."""
        error = call.error
        if error is None and call.name not in self._names:
            error = f"there is no tool {call.name!r}; {hint(call.name, self._names)}"
        return None if error is None else ToolResult(call.id, call.name, "error", error)

    def result(self, call_id: str, content: Any, error: str | None) -> tuple[str, ToolResult] | None:
        """The stream that a client's result is written to, and the result; None where the call has one already.

        Raises:
            NotFoundError: There was no such call.
        """
        if call_id in self.answered:
            return None
        call = self.open.get(call_id)
        if call is None:
            known = ", ".join(self.open) or "none"
            raise NotFoundError(f"there is no call {call_id!r}; waiting for a result: {known}")
        if error is not None:
            return self.stream_of(call), ToolResult(call.id, call.name, "error", error)
        return self.stream_of(call), ToolResult(call.id, call.name, "ok", content)

    def close(self, call_id: str) -> None:
        """The call has its result."""
        del self.open[call_id]
        self.answered[call_id] = None

    def stream_of(self, call: Call) -> str:
        """Where its result comes back."""
        return self._flows[call.lane.partition("#")[0]]

    def _is_calling(self, lane: str) -> bool:
        return lane.partition("#")[0] in self._flows

    def _parser(self, lane: str) -> CallParser:
        if lane not in self._parsers:
            self._parsers[lane] = CallParser(lane, self._ids)
        return self._parsers[lane]
