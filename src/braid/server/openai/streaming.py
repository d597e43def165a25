"""Server-sent events, and work that ends when nobody waits for it any more.

data: {"id": …}        each as soon as it is there
: still here           a comment, when nothing was told for a while
data: {"error": …}     what failed in the middle; what fails before the first event has a status of its own
data: [DONE]           the end
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

import anyio
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from braid.errors import BraidError
from braid.server.errors import error_body, logged_as, mistake_body
from braid.server.service import Service

__all__ = ["DONE", "KEEP_ALIVE_S", "EventStream", "Sink", "while_connected"]

KEEP_ALIVE_S = 15.0
"""Proxies cut connections on which nothing is heard for long."""
DONE = b"data: [DONE]\n\n"
GONE = 499
"""Nobody reads it; it is for the log."""

_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]
Value = TypeVar("Value")


class Sink:
    """Where a stream's events are written; the response begins with the first one."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._lock = anyio.Lock(fast_acquire=True)
        self.has_begun = False
        self.told_at = anyio.current_time()

    async def event(self, data: Mapping[str, Any], name: str | None = None) -> None:
        """Write an event.

        Args:
            data: Sent as JSON.
            name: Its kind, where the protocol names kinds.
        """
        spelled = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
        await self.raw(
            (f"data: {spelled}\n\n" if name is None else f"event: {name}\ndata: {spelled}\n\n").encode()
        )

    async def raw(self, body: bytes) -> None:
        """Write bytes."""
        async with self._lock:
            if not self.has_begun:
                self.has_begun = True
                await self._send({"type": "http.response.start", "status": 200, "headers": list(_HEADERS)})
            await self._send({"type": "http.response.body", "body": body, "more_body": True})
            self.told_at = anyio.current_time()

    async def end(self) -> None:
        """Nothing follows."""
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})


class EventStream(Response):
    """A response that writes events for as long as somebody listens.

    Args:
        service: Whose log a mistake goes to.
        run: Writes the events; it is cancelled when the client has gone.
        failed: Writes what failed in the middle; by default an event with an `error`.
        keep_alive_s: Seconds of silence after which a comment is sent.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        service: Service,
        run: Callable[[Sink], Awaitable[None]],
        *,
        failed: Callable[[Sink, dict[str, Any]], Awaitable[None]] | None = None,
        keep_alive_s: float | None = None,
    ) -> None:
        super().__init__()
        self._service = service
        self._run = run
        self._failed = failed or _tell_error
        self._keep_alive_s = KEEP_ALIVE_S if keep_alive_s is None else keep_alive_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Write it all; errors before the first event are raised."""
        sink = Sink(send)
        failure: Exception | None = None
        is_whole = False
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_watch, receive, tasks.cancel_scope)
            tasks.start_soon(self._keep_alive, sink)
            try:
                await self._run(sink)
            except Exception as error:  # noqa: BLE001 (raised, or told, below: not out of a task group)
                failure = error
            is_whole = True
            tasks.cancel_scope.cancel()
        if not is_whole:
            return
        if failure is not None and not sink.has_begun:
            raise failure
        if failure is not None:
            await self._failed(sink, self._body_of(failure, scope))
        await sink.end()

    def _body_of(self, failure: Exception, scope: Scope) -> dict[str, Any]:
        if isinstance(failure, BraidError):
            return error_body(failure)
        number = scope.get("state", {}).get("request", "")
        self._service.log.mistake("mistake", failure, request=number, path=scope["path"])
        return mistake_body(logged_as(number))

    async def _keep_alive(self, sink: Sink) -> None:
        while True:
            quiet = anyio.current_time() - sink.told_at
            if quiet >= self._keep_alive_s:
                await sink.raw(b": still here\n\n")
                quiet = 0.0
            await anyio.sleep(self._keep_alive_s - quiet)


async def _tell_error(sink: Sink, body: dict[str, Any]) -> None:
    await sink.event(body)


async def _watch(receive: Receive, scope: anyio.CancelScope) -> None:
    """Cancel everything when the client has gone."""
    while (await receive())["type"] != "http.disconnect":
        pass
    scope.cancel()


async def while_connected(request: Request, work: Callable[[], Awaitable[Mapping[str, Any]]]) -> Response:
    """Answer with what the work comes to; it is cancelled when the client has gone.

    Raises:
        BraidError: What the work raises.
    """
    failure: Exception | None = None
    done: Mapping[str, Any] | None = None
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_watch, request.receive, tasks.cancel_scope)
        try:
            done = await work()
        except Exception as error:  # noqa: BLE001 (raised below: not out of a task group)
            failure = error
        tasks.cancel_scope.cancel()
    if failure is not None:
        raise failure
    return Response(status_code=GONE) if done is None else JSONResponse(done)
