"""One field of a JSON text, read while the text is still being written.

    Sure: {"city": "Par            nothing yet
    Sure: {"city": "Paris",        plan.city is Paris; whoever reads only that may begin

What was found stays found, however the text goes on: of a key that is there twice, the first counts. So a field of a
whole text is, by construction, the field that was found while it grew.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

__all__ = ["ABSENT", "FieldReader", "field_of"]


class _Absent:
    """The type of `ABSENT`."""

    def __repr__(self) -> str:
        return "ABSENT"


ABSENT: Any = _Absent()
"""In the place of a value that is not there, or not yet."""


@dataclass
class _Frame:
    """An object or array that is open."""

    is_object: bool
    key: str | None
    """Under which the next value stands: a key, or an index; None before the first key."""
    expects_key: bool = True


class FieldReader:
    """Finds one field in text that comes in pieces.

    The JSON begins at the first brace (or bracket, for a path that begins with a number); what stands before it,
    such as the words of a chatty model, is skipped.

    Args:
        path: Keys and, in arrays, indices, from the outside in.

    >>> reader = FieldReader(["city"])
    >>> reader.read('{"city": "Par'), reader.read('{"city": "Paris", ')
    (ABSENT, 'Paris')
    """

    def __init__(self, path: Sequence[str]) -> None:
        self.value: Any = ABSENT
        self._path = list(path)
        self._opener = "[" if path[0].isdigit() else "{"
        self._text = ""
        self._frames: list[_Frame] = []
        self._has_begun = False
        self._is_over = False
        self._in_string = self._is_escaped = self._in_scalar = False
        self._key_from: int | None = None
        """Where a key begins that is being read."""
        self._value_from: int | None = None
        """Where the field begins, once it does."""

    def read(self, text: str) -> Any:
        """Go on reading.

        Args:
            text: All of it so far; it begins with what was read before.

        Returns:
            The field, or `ABSENT`.
        """
        if not self._is_over:
            begin, self._text = len(self._text), text
            for at in range(begin, len(text)):
                self._step(text[at], at)
                if self._is_over:
                    break
        return self.value

    def _step(self, char: str, at: int) -> None:
        if not self._has_begun:
            if char != self._opener:
                return
            self._has_begun = True
        if self._in_string:
            self._step_in_string(char, at)
            return
        if self._in_scalar:
            if char not in ",]} \t\r\n":
                return
            self._in_scalar = False
            self._ended(at)
            if self._is_over:
                return
        if char == '"':
            self._in_string = True
            if self._frames and self._frames[-1].is_object and self._frames[-1].expects_key:
                self._key_from = at
            else:
                self._began(at)
        elif char in "{[":
            self._began(at)
            self._frames.append(_Frame(True, None) if char == "{" else _Frame(False, "0"))
        elif char in "}]":
            self._frames.pop()
            self._ended(at + 1)
            self._is_over = self._is_over or not self._frames
        elif char == ":":
            self._frames[-1].expects_key = False
        elif char == ",":
            self._next_in(self._frames[-1])
        elif not char.isspace():
            self._in_scalar = True
            self._began(at)

    def _step_in_string(self, char: str, at: int) -> None:
        if self._is_escaped:
            self._is_escaped = False
        elif char == "\\":
            self._is_escaped = True
        elif char == '"':
            self._in_string = False
            if self._key_from is None:
                self._ended(at + 1)
                return
            key = _parsed(self._text[self._key_from : at + 1])
            self._frames[-1].key, self._key_from = str(key), None

    @staticmethod
    def _next_in(frame: _Frame) -> None:
        if frame.is_object:
            frame.expects_key = True
        else:
            frame.key = str(int(frame.key or 0) + 1)

    def _began(self, at: int) -> None:
        if self._value_from is None and [frame.key for frame in self._frames] == self._path:
            self._value_from = at

    def _ended(self, at: int) -> None:
        if self._value_from is not None and len(self._frames) == len(self._path):
            self.value = _parsed(self._text[self._value_from : at])
            self._is_over = True


def _parsed(text: str) -> Any:
    try:
        return json.loads(text, strict=False)
    except (ValueError, RecursionError):  # what models write is not always JSON
        return ABSENT


def field_of(value: Any, path: Sequence[str]) -> Any:
    """A field of a finished output.

    Args:
        value: Text with JSON in it, or what a function has returned.
        path: Keys and indices; none for the value itself.

    Returns:
        `ABSENT` where there is no such field.
    """
    if path and isinstance(value, str):
        return FieldReader(path).read(value)
    for key in path:
        if isinstance(value, dict) and key in value:
            value = cast("dict[str, Any]", value)[key]
        elif isinstance(value, (list, tuple)) and key.isdigit() and int(key) < len(cast("list[Any]", value)):
            value = cast("list[Any]", value)[int(key)]
        else:
            return ABSENT
    return value
