"""Where responses are kept, so that the next one can go on with them."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, Protocol

from braid.server.openai.shapes import ChatMessage

__all__ = ["MemoryResponseStore", "ResponseStore", "StoredResponse"]

MOST = 1000
"""Responses that are kept for a caller; of more, the ones that were used least recently go."""


@dataclass(frozen=True)
class StoredResponse:
    """A response, and the conversation up to its end.

    Args:
        body: As the client has got it.
        messages: What was asked and answered, without instructions.
    """

    body: dict[str, Any]
    messages: tuple[ChatMessage, ...]


class ResponseStore(Protocol):
    """Keeps responses by caller."""

    def put(self, caller: str, stored: StoredResponse) -> None:
        """Keep a response."""
        ...

    def get(self, caller: str, response_id: str) -> StoredResponse | None:
        """A response of that caller's; None if there is none."""
        ...

    def remove(self, caller: str, response_id: str) -> bool:
        """Forget a response; returns whether there was one."""
        ...


class MemoryResponseStore:
    """Keeps them until the server ends, or there are too many.

    Args:
        most: Of one caller.
    """

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._kept: dict[str, OrderedDict[str, StoredResponse]] = {}

    def put(self, caller: str, stored: StoredResponse) -> None:
        """Keep a response."""
        kept = self._kept.setdefault(caller, OrderedDict())
        kept[stored.body["id"]] = stored
        while len(kept) > self._most:
            kept.popitem(last=False)

    def get(self, caller: str, response_id: str) -> StoredResponse | None:
        """A response of that caller's; None if there is none."""
        kept = self._kept.get(caller, OrderedDict())
        if response_id not in kept:
            return None
        kept.move_to_end(response_id)
        return kept[response_id]

    def remove(self, caller: str, response_id: str) -> bool:
        """Forget a response; returns whether there was one."""
        return self._kept.get(caller, OrderedDict()).pop(response_id, None) is not None
