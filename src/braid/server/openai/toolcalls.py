"""Takes a model's text apart, as it comes, into what it says and what it calls.

    Let me look. <tool_call>{"name": "search", "arguments": {…}}</tool_call> One moment.
    └─ content ─┘└───────────── held until it is whole, then a call ───────┘└ content ─┘

What turns out to be no call of a known tool is content after all. Brackets, commas and white space around calls belong
to them: they are held until it is clear what follows.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Iterator

from braid.sessions.tools.calls import Call, CallParser

__all__ = ["CallFilter", "new_call_ids"]

_OPEN_TAG, _CLOSE_TAG = "<tool_call>", "</tool_call>"
_AROUND = frozenset(" \t\r\n[],")


def new_call_ids() -> Iterator[str]:
    """Ids that no other call has, in this conversation or another."""
    while True:
        yield f"call_{secrets.token_hex(12)}"


class CallFilter:
    """Reads one lane.

    Args:
        lane: Its label.
        tools: The names that may be called.
    """

    def __init__(self, lane: str, tools: Collection[str]) -> None:
        self._parser = CallParser(lane, new_call_ids())
        self._tools = tools
        self._held = ""
        """What may belong to a call."""
        self._after = 0
        """Where, in what is held, its last call ends."""
        self._around = ""
        """What may stand between calls."""
        self._has_called = False

    def push(self, text: str) -> list[str | Call]:
        """Take the next piece; returns content and calls, in order."""
        found: list[str | Call] = []
        for character in text:
            self._take(character, found)
        return found

    def flush(self) -> list[str | Call]:
        """Take the end; returns what is left."""
        found: list[str | Call] = []
        self._parser.flush()
        rest, self._held = self._held[self._after :], ""
        if self._after and _CLOSE_TAG.startswith(rest.strip()):
            rest = ""
        self._say(rest, found)
        if self._around and not self._has_called:
            _join(self._around, found)
        self._around, self._after = "", 0
        return found

    def _take(self, character: str, found: list[str | Call]) -> None:
        calls = self._parser.push(character)
        self._held += character
        for call in calls:
            if call.error is None and call.name in self._tools:
                found.append(call)
                self._after = len(self._held)
                self._has_called = True
                self._around = ""
        if self._parser.is_reading:
            return
        if self._after:  # a whole call, and its tags
            self._held, self._after = "", 0
            return
        kept = _begun_tag(self._held)
        said = self._held[: len(self._held) - kept]
        self._held = self._held[len(self._held) - kept :]
        self._say(said, found)

    def _say(self, text: str, found: list[str | Call]) -> None:
        if not text:
            return
        text = self._around + text
        bare = text.rstrip("".join(_AROUND))
        self._around = text[len(bare) :]
        if bare:
            _join(bare, found)


def _join(text: str, found: list[str | Call]) -> None:
    if found and isinstance(found[-1], str):
        found[-1] += text
    else:
        found.append(text)


def _begun_tag(text: str) -> int:
    """Length of the end of a text that may become a tag."""
    for length in range(min(len(text), len(_OPEN_TAG) - 1), 0, -1):
        if _OPEN_TAG.startswith(text[-length:]):
            return length
    return 0
