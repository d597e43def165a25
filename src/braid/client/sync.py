"""The same without `await`: an event loop in a thread of its own does the work.

with braid.client.connect_sync("http://127.0.0.1:8000") as client:
    with client.open(topology="chat") as session:
        session.write("user", "Hello.")
        session.end()
        for message in session:
            ...
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, ExitStack
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from anyio.from_thread import BlockingPortal, start_blocking_portal

from braid.client import protocol
from braid.client.session import Client, Session, connect
from braid.errors import InputError

__all__ = ["SyncClient", "SyncSession", "connect_sync"]

Parameters = ParamSpec("Parameters")
Value = TypeVar("Value")


def connect_sync(url: str, *, api_key: str | None = None, give_up_after_s: float = 60.0) -> SyncClient:
    """A server, to be entered with `with`; see `connect`."""
    return SyncClient(connect(url, api_key=api_key, give_up_after_s=give_up_after_s))


def _blocking(
    method: Callable[Concatenate[Session, Parameters], Awaitable[Value]],
) -> Callable[Concatenate[SyncSession, Parameters], Value]:
    """The same method, which returns when the other one is done."""

    @functools.wraps(method)
    def blocking(session: SyncSession, /, *args: Parameters.args, **kwargs: Parameters.kwargs) -> Value:
        return session.portal.call(functools.partial(method, session.inner, *args, **kwargs))

    return blocking


class SyncSession:
    """A `Session` for code without an event loop.

    Args:
        portal: To the loop.
        inner: The session there.
    """

    def __init__(self, portal: BlockingPortal, inner: Session) -> None:
        self.portal = portal
        self.inner = inner
        self._entered: AbstractContextManager[Session] | None = None

    write = _blocking(Session.write)
    end = _blocking(Session.end)
    flush = _blocking(Session.flush)
    snapshot = _blocking(Session.snapshot)
    commit = _blocking(Session.commit)
    rollback = _blocking(Session.rollback)
    suggest = _blocking(Session.suggest)
    interrupt = _blocking(Session.interrupt)
    cancel = _blocking(Session.cancel)
    force = _blocking(Session.force)
    close_stream = _blocking(Session.close_stream)
    tool_result = _blocking(Session.tool_result)
    ping = _blocking(Session.ping)
    close = _blocking(Session.close)
    wait_for_turn = _blocking(Session.wait_for_turn)

    @property
    def name(self) -> str:
        """What `resume` takes."""
        return self.inner.name

    @property
    def last(self) -> int:
        """Id of the last message that has come."""
        return self.inner.last

    @property
    def is_closed(self) -> bool:
        """Whether nothing more comes."""
        return self.inner.is_closed

    def text(self, stream: str) -> str:
        """What an output has said since this client listens, of all turns."""

        async def text() -> str:
            return self.inner.text(stream)

        return self.portal.call(text)

    def leave(self) -> None:
        """Let the session go on without this client."""
        self.inner.leave()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> protocol.ServerMessage:
        async def following() -> protocol.ServerMessage | None:
            return await anext(self.inner, None)  # an end cannot be raised through a future

        message = self.portal.call(following)
        if message is None:
            raise StopIteration
        return message

    def __enter__(self) -> Self:
        self._entered = self.portal.wrap_async_context_manager(self.inner)
        self._entered.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._entered is not None
        self._entered.__exit__(kind, error, trace)


class SyncClient:
    """A `Client` for code without an event loop; use `connect_sync`.

    Args:
        inner: The client that does the work.
    """

    def __init__(self, inner: Client) -> None:
        self._inner = inner
        self._stack = ExitStack()
        self._portal: BlockingPortal | None = None

    def open(self, *args: Any, **kwargs: Any) -> SyncSession:
        """A new session, to be entered with `with`; takes what `Client.open` takes."""
        return self._wrapped(self._inner.open(*args, **kwargs))

    def resume(self, *args: Any, **kwargs: Any) -> SyncSession:
        """A session that is there already; takes what `Client.resume` takes."""
        return self._wrapped(self._inner.resume(*args, **kwargs))

    def _wrapped(self, session: Session) -> SyncSession:
        if self._portal is None:
            raise InputError("the client has not been entered; use `with connect_sync(…) as client`")
        return SyncSession(self._portal, session)

    def __enter__(self) -> Self:
        self._portal = self._stack.enter_context(start_blocking_portal())
        self._stack.enter_context(self._portal.wrap_async_context_manager(self._inner))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._portal = None
        self._stack.__exit__(kind, error, trace)
