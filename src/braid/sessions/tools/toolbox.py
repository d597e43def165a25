"""The tools of a session, and running them: whatever happens to a call, the model gets a result.

    call ── malformed? ── unknown? ── wait for a turn ── run, until the timeout ── as JSON, cut to length ── result
              └── error    └── error                       └── error, timeout        └── error

Only cancellation passes through.
"""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import anyio
from pydantic_core import to_jsonable_python

from braid.engine.metrics import ToolStatus
from braid.errors import InputError
from braid.sessions.tools.calls import Call
from braid.sessions.tools.tool import Failure, Tool, check_timeout
from braid.streams.strict import hint

__all__ = ["ToolResult", "ToolStatus", "Toolbox"]


DEFAULT_TIMEOUT_S = 30.0
DEFAULT_MAX_RUNNING = 8
DEFAULT_MAX_RESULT_CHARS = 20_000
"""About five thousand tokens: a page or ten, and no more of the context than a model can spare."""

_HOW_TO_CALL = (
    "You can call the tools below, each described by one line of JSON. To call one, write a JSON object such as "
    '{"name": "the tool\'s name", "arguments": {"argument": "value"}}. You may write several, one after another, '
    "and need not wait between them. Each result comes back as one line of JSON with the id of its call, call_1 for "
    "your first, in the order in which they are ready."
)


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What came of a call.

    Args:
        id: The call's.
        name: The tool's; empty where the call named none.
        status: `ok`, or why there is no result.
        content: The result where it is `ok`, as JSON has it; otherwise what went wrong, in words.
        seconds: How long the tool ran, waiting for its turn apart.
    """

    id: str
    name: str
    status: ToolStatus
    content: Any
    seconds: float = 0.0

    @property
    def is_ok(self) -> bool:
        """Whether the tool did what was asked."""
        return self.status == "ok"

    def to_text(self) -> str:
        """One line of JSON for the model: the id, the name, and the `result` or the `error`.

        >>> ToolResult("call_1", "add", "ok", 3).to_text()
        '{"id": "call_1", "name": "add", "result": 3}'
        """
        key = "result" if self.is_ok else "error"
        text = json.dumps({"id": self.id, "name": self.name, key: self.content}, ensure_ascii=False)
        # Half a surrogate pair, as truncated text may end in, is no text that could be tokenised or sent.
        return text.encode("utf-8", "replace").decode("utf-8")


class Toolbox:
    """Tools by name, and how their calls are run.

    Sessions may share one; `max_running` then holds for all of them together.

    Args:
        tools: Each of another name.
        timeout_s: Seconds that a call may run, where its tool does not say.
        max_running: Calls that run at once; the rest wait, first come, first served. Waiting is not counted as time.
        max_result_chars: Longer results and messages are cut, with a note that says so.

    Raises:
        InputError: Two tools have one name, or a number is too small.
    """

    def __init__(
        self,
        tools: Sequence[Tool],
        *,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        max_running: int = DEFAULT_MAX_RUNNING,
        max_result_chars: int = DEFAULT_MAX_RESULT_CHARS,
    ) -> None:
        check_timeout(timeout_s)
        if max_running < 1 or max_result_chars < 1:
            raise InputError("max_running and max_result_chars must be 1 or more")
        self._tools: dict[str, Tool] = {}
        for tool in tools:
            if tool.name in self._tools:
                raise InputError(f"there are two tools {tool.name!r}; give one of them another name")
            self._tools[tool.name] = tool
        self._timeout_s = timeout_s
        self._max_result_chars = max_result_chars
        self._turns = anyio.CapacityLimiter(max_running)

    @property
    def names(self) -> tuple[str, ...]:
        """The tools' names, in the order they were given."""
        return tuple(self._tools)

    def schemas(self) -> list[dict[str, Any]]:
        """Function schemas in the form of the OpenAI API, which chat templates read too."""
        return [tool.schema() for tool in self._tools.values()]

    def describe(self) -> str:
        """The tools, and how to call them, as text for a system prompt; empty without tools."""
        if not self._tools:
            return ""
        lines = (json.dumps(tool.schema()["function"], ensure_ascii=False) for tool in self._tools.values())
        return "\n".join([_HOW_TO_CALL, *lines])

    async def run(self, call: Call) -> ToolResult:
        """Run a call to its end; nothing is raised but cancellation.

        Args:
            call: From a `CallParser`, malformed ones included.
        """
        if call.error is not None:
            return self._failed(call, "error", call.error)
        tool = self._tools.get(call.name)
        if tool is None:
            return self._failed(
                call, "error", f"there is no tool {call.name!r}; {hint(call.name, self._tools)}"
            )
        async with self._turns:
            return await self._run(tool, call)

    async def _run(self, tool: Tool, call: Call) -> ToolResult:
        limit = self._timeout_s if tool.timeout_s is None else tool.timeout_s
        began = time.perf_counter()
        try:
            with anyio.move_on_after(limit) as scope:
                value = await tool.call(dict(call.arguments))
                return self._returned(call, value, time.perf_counter() - began)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever a tool raises is its result
            return self._failed(call, "error", _words(error), time.perf_counter() - began)
        except anyio.get_cancelled_exc_class():
            if _is_being_cancelled():
                raise
            # The tool waited for a task of its own that was cancelled. Passed on, it would end in silence.
            return self._failed(call, "cancelled", "the tool was cancelled", time.perf_counter() - began)
        assert scope.cancelled_caught
        message = f"no answer within {limit:g} s; the call was given up"
        return self._failed(call, "timeout", message, time.perf_counter() - began)

    def _returned(self, call: Call, value: object, seconds: float) -> ToolResult:
        if isinstance(value, Failure):
            return self._failed(call, "error", value.message, seconds)
        if isinstance(value, str):
            return ToolResult(call.id, call.name, "ok", self._cut(value), seconds)
        if isinstance(value, (Iterator, AsyncIterator)):
            # It may have no end, and reading it here would block the event loop.
            return self._failed(
                call, "error", f"{call.name} returned a generator; it must return a list", seconds
            )
        try:
            content, text = _as_json(value)
        except Exception as error:  # noqa: BLE001 - a value may do anything while it is looked at
            reason = f"the result of {call.name} cannot be written as JSON: {_words(error)}"
            return self._failed(call, "error", reason, seconds)
        is_short = len(text) <= self._max_result_chars
        return ToolResult(call.id, call.name, "ok", content if is_short else self._cut(text), seconds)

    def _failed(self, call: Call, status: ToolStatus, message: str, seconds: float = 0.0) -> ToolResult:
        return ToolResult(call.id, call.name, status, self._cut(message), seconds)

    def _cut(self, text: str) -> str:
        limit = self._max_result_chars
        return text if len(text) <= limit else f"{text[:limit]} … [cut: {limit} of {len(text)} characters]"


def _as_json(value: object) -> tuple[Any, str]:
    """A value in JSON's own types, and its text; dataclasses, pydantic models, dates and the like are converted."""
    content = to_jsonable_python(value)
    return content, json.dumps(content, ensure_ascii=False, allow_nan=False)


def _words(error: BaseException) -> str:
    """An exception in words: its type and its message, without a traceback, which tells a model nothing."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    try:
        message = str(error)
    except Exception:  # noqa: BLE001 - a broken __str__ must not hide the error
        message = ""
    name = type(error).__name__
    return f"{name}: {message}" if message else name


def _is_being_cancelled() -> bool:
    """Whether whoever runs this task wants it to end, by a cancel scope or by asyncio's own `cancel`."""
    if anyio.current_effective_deadline() == -math.inf:
        return True
    if anyio.get_cancelled_exc_class() is not asyncio.CancelledError:
        return False
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
