"""The line to one session: a connection that comes back by itself.

    ask(command) ──▶ pending, in order ──▶ socket ──▶ server
                        │  answered: gone                 │
                        └── sent again after `resumed` ◀──┘ connection lost: backoff, resume after the last message

The server does a command with one id once, so sending it again is safe; messages are counted, so none is taken twice
and none is missed.
"""

from __future__ import annotations

import asyncio
import json
import random
import secrets
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit

import anyio

from braid.client import protocol
from braid.errors import BraidError, ConnectionLostError, InputError, SessionClosedError, SessionError

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection

__all__ = ["Address", "Line"]

REPLACED = 4409
"""Close code: another connection has resumed the session."""
FIRST_WAIT_S = 0.05
LONGEST_WAIT_S = 5.0
CLOSE_S = 1.0
"""How long the other side may take to say good-bye."""


@dataclass(frozen=True)
class Address:
    """Where the server is.

    Args:
        url: `http://host:port`, or `ws://…`, with or without the path.
        api_key: If the server wants one.
        give_up_after_s: How long a connection is tried for before it is given up.
        open_timeout_s: How long one try may take.
    """

    url: str
    api_key: str | None = field(default=None, repr=False)
    give_up_after_s: float = 60.0
    open_timeout_s: float = 10.0

    @property
    def live_url(self) -> str:
        """Of the WebSocket.

        Raises:
            InputError: There is no such address.
        """
        parts = urlsplit(self.url if "://" in self.url else f"http://{self.url}")
        scheme = {"http": "ws", "https": "wss", "ws": "ws", "wss": "wss"}.get(parts.scheme)
        if scheme is None or not parts.netloc:
            raise InputError(f"{self.url!r} is no address of a server; say http://127.0.0.1:8000")
        path = parts.path.rstrip("/").removesuffix("/v1/live").removesuffix("/v1") + "/v1/live"
        return urlunsplit((scheme, parts.netloc, path, "", ""))

    def connect(self) -> AbstractAsyncContextManager[ClientConnection]:
        """A new connection.

        Raises:
            InputError: `websockets` is not installed.
        """
        try:
            from websockets.asyncio.client import connect
        except ModuleNotFoundError as error:
            raise InputError("the client needs websockets: pip install 'braid-llm[serve]'") from error
        headers = {} if self.api_key is None else {"Authorization": f"Bearer {self.api_key}"}
        return connect(
            self.live_url,
            additional_headers=headers,
            open_timeout=self.open_timeout_s,
            compression=None,
            max_size=None,
        )


@dataclass(eq=False)
class _Asked:
    """A command that has no answer yet."""

    text: str
    answer: asyncio.Future[protocol.ServerMessage]


class _Retry(Exception):
    """The connection is of no use; another may be, after so many seconds or more."""

    def __init__(self, reason: str, wait_s: float = 0.0) -> None:
        super().__init__(reason)
        self.wait_s = wait_s


class Line:
    """Speaks with one session.

    Args:
        address: Of the server.
        opening: How the session begins; None for one that is there already.
        session, last: Name of one that is there, and the last message of it that was seen.
        hear: Called with every message, once, in order, and with each `resumed`.
    """

    def __init__(
        self,
        address: Address,
        hear: Callable[[protocol.ServerMessage], None],
        *,
        opening: protocol.Open | None = None,
        session: str = "",
        last: int = 0,
    ) -> None:
        self.session = session
        self.last = last
        self.num_connections = 0
        self.error: BraidError | None = None
        """Why nothing more comes, where something went wrong."""
        self.is_over = False
        self._address = address
        self._hear = hear
        self._opening = opening
        self._pending: dict[str, _Asked] = {}
        self._unsent: list[str] = []
        self._wake = anyio.Event()
        self._prefix = secrets.token_hex(4)
        self._num_asked = 0
        self._socket: ClientConnection | None = None

    # ---- asking

    async def ask(self, make: Callable[[str], protocol.Command]) -> protocol.ServerMessage:
        """Send a command; returns its answer, over however many connections.

        Args:
            make: Makes the command of its id.

        Raises:
            BraidError: It was refused, or the connection is lost for good.
        """
        if self.error is not None:
            raise self.error
        self._num_asked += 1
        command_id = f"{self._prefix}_{self._num_asked}"
        text = make(command_id).model_dump_json(exclude_none=True)
        asked = _Asked(text, asyncio.get_running_loop().create_future())
        self._pending[command_id] = asked
        self._unsent.append(text)
        self._wake.set()
        return await asked.answer

    def drop(self) -> None:
        """Lose the connection, for tests and for whoever knows that it is bad; another is made at once."""
        if self._socket is not None:
            self._socket.transport.abort()

    # ---- connections

    async def run(self) -> None:
        """Keep a connection until the session is closed, or cannot be reached any more."""
        wait, lost_at = FIRST_WAIT_S, time.monotonic()
        try:
            while not self.is_over:
                num_before = self.last, self.num_connections
                try:
                    await self._connect()
                except _Retry as error:
                    if num_before != (self.last, self.num_connections):
                        wait, lost_at = FIRST_WAIT_S, time.monotonic()
                    elif time.monotonic() - lost_at > self._address.give_up_after_s:
                        tried = f"{self._address.give_up_after_s:g} s"
                        raise ConnectionLostError(
                            f"{self._address.live_url} cannot be reached for {tried} ({error})"
                        ) from None
                    await anyio.sleep(max(error.wait_s, wait * random.uniform(0.5, 1)))
                    wait = min(2 * wait, LONGEST_WAIT_S)
        except BraidError as error:
            self.error = error
        finally:
            self._end()

    def _end(self) -> None:
        self.is_over = True
        gone = self.error or SessionClosedError("the session is closed; open a new one")
        for asked in self._pending.values():
            if not asked.answer.done():
                asked.answer.set_exception(gone)
                asked.answer.exception()  # whoever asked may have gone: then it is nobody's
        self._pending.clear()

    async def _connect(self) -> None:
        from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus

        try:
            async with self._address.connect() as socket:
                self._socket = socket
                await self._speak(socket)
        except InvalidStatus as error:
            raise _refusal(error.response.status_code, error.response.body) from None
        except ConnectionClosed as error:
            code = None if error.rcvd is None else error.rcvd.code
            if code == REPLACED:
                raise SessionError("another connection has resumed this session") from None
            raise _Retry(f"the connection was closed, code {code}") from None
        except (OSError, TimeoutError, InvalidHandshake, EOFError) as error:
            raise _Retry(f"{type(error).__name__}: {error}") from None
        finally:
            self._socket = None

    async def _speak(self, socket: ClientConnection) -> None:
        sending: asyncio.Future[None] | None = None
        try:
            await self._greet(socket)
            self.num_connections += 1
            self._unsent = [asked.text for asked in self._pending.values()]
            sending = asyncio.ensure_future(self._send_all(socket))
            while not self.is_over:
                self._take(protocol.parse_message(await socket.recv()))
        finally:
            if sending is not None:
                sending.cancel()
            with anyio.move_on_after(
                CLOSE_S, shield=True
            ):  # in order, even where whoever listens is cancelled
                await socket.close()
            socket.transport.abort()

    async def _greet(self, socket: ClientConnection) -> None:
        """Open the session, or resume it."""
        greeting: protocol.Command
        if self._opening is not None and not self.session:
            greeting = self._opening.model_copy(update={"id": f"{self._prefix}_open"})
        else:
            greeting = protocol.Resume(id=f"{self._prefix}_resume", session=self.session, after=self.last)
        await socket.send(greeting.model_dump_json())
        while True:
            message = protocol.parse_message(await socket.recv())
            if isinstance(message, protocol.Problem) and message.id is None:
                if message.retry_after_s is not None:
                    raise _Retry(message.message, message.retry_after_s)
                raise BraidError.of(message.code, message.message)
            if isinstance(message, protocol.Opened):
                self.session = message.session
            if isinstance(message, protocol.Opened | protocol.Resumed):
                self._take(message)
                return

    async def _send_all(self, socket: ClientConnection) -> None:
        from websockets.exceptions import ConnectionClosed

        try:
            while True:
                self._wake = anyio.Event()
                texts, self._unsent = self._unsent, []
                for text in texts:
                    await socket.send(text)
                if not self._unsent:
                    await self._wake.wait()
        except ConnectionClosed:  # told to whoever receives
            return

    def _take(self, message: protocol.ServerMessage) -> None:
        number = getattr(message, "id", None)
        if isinstance(number, int):
            if number > self.last + 1:
                raise _Retry(f"message {number} came after {self.last}")
            is_new = number == self.last + 1
        else:
            is_new = not isinstance(message, protocol.Problem | protocol.Pong)
        re = getattr(message, "re", None)
        asked = None if re is None else self._pending.pop(re, None)
        if is_new and isinstance(number, int):
            self.last = number
        if asked is not None and not asked.answer.done():
            if isinstance(message, protocol.Problem):
                asked.answer.set_exception(BraidError.of(message.code, message.message))
                asked.answer.exception()  # whoever asked may have gone
            else:
                asked.answer.set_result(message)
        elif (
            isinstance(message, protocol.Problem)
            and re is None
            and number is None
            and message.code != "engine.closed"
        ):
            self.error = BraidError.of(message.code, message.message)
        if is_new:
            self._hear(message)
        if isinstance(message, protocol.Closed):
            self.is_over = True


def _refusal(status: int, body: bytes | bytearray | None) -> Exception:
    """What a server says that takes no WebSocket: worth another try, or not."""
    message, code = f"the server answered with the HTTP status {status}", "server"
    try:
        told: Any = json.loads(body or b"")
        if isinstance(told, Mapping):
            message, code = str(told["error"]["message"]), str(told["error"]["code"])
    except (ValueError, KeyError, TypeError):
        pass
    return _Retry(message, 1.0) if status in (429, 502, 503, 504) else BraidError.of(code, message)
