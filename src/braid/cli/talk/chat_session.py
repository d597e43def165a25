"""What a conversation needs of a session: `braid.sessions.Session` has it, and so has a scripted one in tests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

from braid.errors import BraidError
from braid.streams.events import Event
from braid.streams.lanes import LaneTable
from braid.streams.transcript import Transcript

if TYPE_CHECKING:
    from braid.engine.editing.editable import Mode

__all__ = ["ChatSession"]


class ChatSession(Protocol):
    """A session, as far as a conversation uses it."""

    @property
    def error(self) -> BraidError | None:
        """What ended the session from inside."""
        ...

    @property
    def lanes(self) -> LaneTable:
        """The streams, each copy counted."""
        ...

    @property
    def transcript(self) -> Transcript:
        """The canonical record so far; it can be read when the session is closed, too."""
        ...

    @property
    def is_closed(self) -> bool:
        """Whether the session has ended."""
        ...

    @property
    def kv_tokens(self) -> int:
        """Tokens that the cache keeps for the session."""
        ...

    async def write(self, stream: str, text: str) -> None:
        """Add text to an input."""
        ...

    async def end(self, stream: str | None = None) -> None:
        """Say that an input is complete for this turn."""
        ...

    async def snapshot(self, texts: Mapping[str, str], *, mode: Mode = "exact") -> None:
        """Say what inputs hold by now, as long as it may still change."""
        ...

    async def commit(self) -> object:
        """Say that it will not change any more, and wait for the answer."""
        ...

    async def interrupt(self, stream: str | None = None) -> None:
        """Force the end of what speaks."""
        ...

    async def cancel(self, stream: str | None = None) -> None:
        """Put outputs to sleep."""
        ...

    async def close(self, reason: str = "closed") -> None:
        """End the session; iteration stops after the last event."""
        ...

    def __aiter__(self) -> AsyncIterator[Event]: ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None: ...
