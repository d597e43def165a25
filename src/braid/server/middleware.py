"""What every request passes before it reaches a route, and what becomes of whatever a route raises.

    request id ▶ host ▶ key ▶ origin ▶ rate ▶ body limit ▶ route ▶ log

Plain ASGI, so that no route can be left out and streams are not buffered.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from typing import Any

from starlette.datastructures import Headers
from starlette.requests import HTTPConnection
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from braid.errors import BraidError, TooLargeError
from braid.server.access import COOKIE, Caller
from braid.server.errors import error_body, headers_of, logged_as, mistake_body, status_of
from braid.server.service import Service

__all__ = ["Door"]

_SAFE_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-frame-options", b"DENY"),
)


class Door:
    """Lets callers in, and logs how they left.

    Args:
        app: The routes.
        service: The server.
    """

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app = app
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or one connection."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        visit = _Visit(self._service, scope, send)
        try:
            caller = self._admit(scope)
        except BraidError as error:
            await visit.refuse(error, receive)
            visit.log(None)
            return
        scope.setdefault("state", {})["caller"] = caller
        scope["state"]["request"] = visit.number
        visit.begin_visit(caller)
        try:
            if scope["type"] == "http":
                receive = _Limited(receive, self._service.settings.max_body_bytes)
            await self._app(scope, receive, visit.send)
        except BraidError as error:
            await visit.refuse(error, receive)
        except Exception as error:  # noqa: BLE001 (told as such, and logged with where it was)
            self._service.log.mistake("mistake", error, request=visit.number, path=scope["path"])
            await visit.refuse_by_mistake(receive)
        finally:
            visit.log(caller)

    def _admit(self, scope: Scope) -> Caller:
        gate, settings = self._service.gate, self._service.settings
        headers = Headers(scope=scope)
        gate.require_host(headers)
        if scope["path"] in settings.open_routes:
            return Caller("anybody")
        is_preflight = scope["type"] == "http" and scope["method"] == "OPTIONS"
        if is_preflight:  # carries no key by its nature, and is answered without a route
            gate.require_origin(headers)
            return Caller("anybody")
        caller = gate.caller(headers, HTTPConnection(scope).cookies)
        if scope["type"] == "websocket" or scope["method"] not in ("GET", "HEAD"):
            gate.require_origin(headers)
            caller.spend()
        return caller


class _Visit:
    """One request from its beginning to its end."""

    def __init__(self, service: Service, scope: Scope, send: Send) -> None:
        self.number = f"r_{secrets.token_hex(8)}"
        self._service = service
        self._scope = scope
        self._send = send
        self._began = time.perf_counter()
        self._status = 0
        self._cookie: str | None = None

    def begin_visit(self, caller: Caller) -> None:
        """A browser that has given its key is known by a cookie from then on."""
        if self._scope["type"] == "http" and self._service.gate.needs_keys:
            given = Headers(scope=self._scope).get("authorization", "")
            gate = self._service.gate
            if given.lower().startswith("basic ") and not gate.knows(HTTPConnection(self._scope).cookies):
                self._cookie = gate.begin_visit(caller)

    async def send(self, message: Message) -> None:
        """Pass on what the route sends, with our headers."""
        if message["type"] == "http.response.start":
            self._status = message["status"]
            own = [*_SAFE_HEADERS, (b"x-request-id", self.number.encode())]
            if self._cookie is not None:
                cookie = f"{COOKIE}={self._cookie}; HttpOnly; SameSite=Strict; Path=/"
                own.append((b"set-cookie", cookie.encode()))
            message = {**message, "headers": [*message.get("headers", ()), *own]}
        elif message["type"] == "websocket.accept":
            self._status = 101
        elif message["type"] == "websocket.http.response.start":
            self._status = message["status"]
        await self._send(message)

    async def refuse(self, error: BraidError, receive: Receive) -> None:
        """Say why, where that can still be said."""
        await self._answer(status_of(error), error_body(error), headers_of(error), receive)

    async def refuse_by_mistake(self, receive: Receive) -> None:
        """Say that it was ours."""
        await self._answer(500, mistake_body(logged_as(self.number)), {}, receive)

    async def _answer(
        self, status: int, body: Mapping[str, Any], headers: Mapping[str, str], receive: Receive
    ) -> None:
        if self._status:  # it has begun already; the connection is cut, so that nobody takes it for whole
            return
        response = JSONResponse(body, status, dict(headers))
        if self._scope["type"] == "websocket" and "websocket.http.response" not in self._scope.get(
            "extensions", {}
        ):
            await self._send(
                {"type": "websocket.close", "code": 1008, "reason": body["error"]["message"][:120]}
            )
            self._status = status
            return
        await response(self._scope, receive, self.send)

    def log(self, caller: Caller | None) -> None:
        """How it ended."""
        seconds = time.perf_counter() - self._began
        route = getattr(self._scope.get("route"), "path", "unknown")
        name = "nobody" if caller is None else caller.name
        service = self._service
        service.requests.labels(route, str(self._status), name).inc()
        if self._scope["type"] == "http":
            service.request_seconds.labels(route).observe(seconds)
        service.log.info(
            "request" if self._scope["type"] == "http" else "connection",
            request=self.number,
            caller=name,
            method=self._scope.get("method", "WS"),
            path=self._scope["path"],
            status=self._status,
            ms=round(seconds * 1000, 1),
        )


class _Limited:
    """Receives a body that may have so many bytes."""

    def __init__(self, receive: Receive, limit: int) -> None:
        self._receive = receive
        self._limit = limit
        self._num = 0

    async def __call__(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.request":
            self._num += len(message.get("body", b""))
            if self._num > self._limit:
                raise TooLargeError(
                    f"the request is larger than {self._limit} bytes, which is all that is taken"
                )
        return message
