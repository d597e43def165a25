"""One WebSocket: commands come in, answers and a session's messages go out.

    receive ▶ parse ▶ hub or session ──▶ replies ──┐
                          session's feed, from ────┴──▶ send, one after another
                          the cursor on

Whatever a frame holds, the answer is a message: only the client, the server's stop or a newer connection ends this one.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

import anyio
from starlette.websockets import WebSocket, WebSocketDisconnect

from braid.client import protocol
from braid.errors import BraidError, InputError, SessionClosedError, SessionError, TooLargeError
from braid.server.errors import INTERNAL, retry_after
from braid.server.live.feed import Feed, Published
from braid.server.live.session import LiveSession

if TYPE_CHECKING:
    from braid.server.access import Caller
    from braid.server.live.hub import Hub

__all__ = ["Connection"]

REPLACED = 4409
"""WebSocket close code: another connection has resumed the session."""
LAST_WORDS_S = 1.0
"""How long a client that is sent away may take to read why."""


class Connection:
    """One client's connection.

    Args:
        socket: Accepted.
        hub: The sessions.
        caller: Whose it is.
    """

    def __init__(self, socket: WebSocket, hub: Hub, caller: Caller) -> None:
        self.cursor = 0
        self._socket = socket
        self._hub = hub
        self._caller = caller
        self._limit = hub.service.settings.max_frame_bytes
        self._seconds = hub.service.send_seconds
        self._session: LiveSession | None = None
        self._feed: Feed | None = None
        self._replies: deque[str] = deque()
        self._close_code: int | None = None
        self._wake = anyio.Event()
        self._scope = anyio.CancelScope()
        self._num_begun = 0
        self._has_opened = False
        """Whether the session was opened on this connection, not resumed."""

    async def serve(self) -> None:
        """Talk until one side closes."""
        try:
            with self._scope:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(self._send_all)
                    await self._receive_all()
                    tasks.cancel_scope.cancel()
        finally:
            self._leave()

    def _leave(self) -> None:
        feed, session = self._feed, self._session
        if feed is None or not feed.detach(self) or session is None:
            return
        session.touched = time.monotonic()
        if self._has_opened and not self.cursor:
            session.close("never heard of")  # its client does not know the name, and cannot come back

    # ---- coming in

    async def _receive_all(self) -> None:
        while True:
            message = await self._socket.receive()
            if message["type"] == "websocket.disconnect":
                return
            await self._hear(message)

    async def _hear(self, frame: Mapping[str, Any]) -> None:
        command: protocol.Command | None = None
        try:
            command = protocol.parse_command(self._text_of(frame))
            await self._obey(command)
        except BraidError as error:
            self._refuse(_id_in(frame) if command is None else command.id, error)
        except Exception as error:  # noqa: BLE001 (told as such, and logged with where it was)
            self._hub.service.log.mistake("mistake", error, path="/v1/live")
            re = None if command is None else command.id
            message = "an internal error; the server's log has it"
            self._reply(protocol.Problem(re=re, code=INTERNAL, message=message))

    def _text_of(self, frame: Mapping[str, Any]) -> str:
        text = frame.get("text")
        if text is None:
            raise InputError("this is no command: messages are JSON in text frames, not binary ones")
        if len(text) > self._limit or len(text.encode("utf-8", "replace")) > self._limit:
            raise TooLargeError(f"the message is larger than {self._limit} bytes, which is all that is taken")
        return text

    async def _obey(self, command: protocol.Command) -> None:
        match command:
            case protocol.Ping():
                self._reply(protocol.Pong(re=command.id))
            case protocol.Open():
                self._begin("open")
                session = await self._hub.open(self._caller, command)
                self._session, self._has_opened = session, True
                self._attach(session.feed, 0)
            case protocol.Resume():
                self._begin("resume")
                await self._resume(command)
            case _:
                await self._do(command)

    def _begin(self, verb: str) -> None:
        if self._feed is not None and not (self._session is None or self._session.is_over):
            raise SessionError(
                f"this connection has the session {self._feed.name} already; `{verb}` on another connection"
            )
        if self._num_begun:  # the first one was counted with the connection
            self._caller.spend()
        self._num_begun += 1

    async def _resume(self, command: protocol.Resume) -> None:
        found = await self._hub.resume(self._caller, command.session)
        feed = found if isinstance(found, Feed) else found.feed
        if command.after > feed.last_id:
            raise InputError(
                f"the session has told {feed.last_id} messages, and not the {command.after} of `after`"
            )
        if self._feed is not None:
            self._feed.detach(self)
        self._session, self._has_opened = None if isinstance(found, Feed) else found, False
        calls = [] if self._session is None else self._session.open_calls()
        self._reply(protocol.Resumed(re=command.id, session=feed.name, last=feed.last_id, calls=calls))
        self._attach(feed, command.after)

    def _attach(self, feed: Feed, after: int) -> None:
        self.cursor, self._feed = after, feed
        replaced = feed.attach(self)
        if replaced is not None and replaced is not self:
            replaced.dismiss(REPLACED, SessionError("another connection has resumed this session"))
        self.wake()

    async def _do(self, command: Any) -> None:
        session, feed = self._session, self._feed
        if feed is None:
            raise SessionError("this connection has no session; send `open` or `resume` first")
        if session is None:
            raise _ended(feed.name)
        told = session.answered(command.id)
        if told is None:
            await session.do(command)
        elif told <= self.cursor:  # it was sent on this connection, or seen before; else it comes by itself
            self._replies.extend(
                message.text for message in await session.feed.fetch(told - 1) if message.id == told
            )
            self.wake()

    # ---- going out

    def _reply(self, message: Any) -> None:
        self._replies.append(message.model_dump_json())
        self.wake()

    def _refuse(self, re: str | None, error: BraidError) -> None:
        self._reply(
            protocol.Problem(re=re, code=error.code, message=str(error), retry_after_s=retry_after(error))
        )

    def wake(self) -> None:
        """There may be something to send."""
        self._wake.set()

    def dismiss(self, code: int, error: Exception) -> None:
        """Say why, and close; a client that does not read is cut off."""
        if self._close_code is None:
            self._close_code = code
            self._refuse(None, error if isinstance(error, BraidError) else SessionError(str(error)))
            self._scope.deadline = anyio.current_time() + LAST_WORDS_S

    async def _send_all(self) -> None:
        with contextlib.suppress(WebSocketDisconnect, RuntimeError):  # the client is gone
            while True:
                self._wake = anyio.Event()
                if self._replies:
                    await self._socket.send_text(self._replies.popleft())
                elif self._close_code is not None:
                    await self._socket.close(self._close_code)
                    break
                elif not await self._send_some():
                    await self._wake.wait()
        self._scope.cancel()

    async def _send_some(self) -> bool:
        """Send what the session has told; returns whether there was anything."""
        feed = self._feed
        if feed is None:
            return False
        messages = await feed.fetch(self.cursor)
        for message in messages:
            if feed is not self._feed or self._replies or self._close_code is not None:
                break
            await self._socket.send_text(message.text)
            self._sent(feed, message)
        return bool(messages)

    def _sent(self, feed: Feed, message: Published) -> None:
        self.cursor = message.id
        feed.moved()
        if message.since is not None:
            self._seconds.observe(time.perf_counter() - message.since)


def _id_in(frame: Mapping[str, Any]) -> str | None:
    """The id of a command that is wrong, where it can be made out, so that its sender knows which one was refused."""
    try:
        data: object = json.loads(frame.get("text") or "")
        given = cast("dict[str, Any]", data).get("id") if isinstance(data, dict) else None
        if isinstance(given, str) and 0 < len(given) <= protocol.MAX_ID:
            given.encode()
            return given
    except (ValueError, RecursionError):
        pass
    return None


def _ended(name: str) -> BraidError:
    return SessionClosedError(
        f"the session is closed; open a new one (its transcript stays for a while at /v1/sessions/{name}/transcript)"
    )
