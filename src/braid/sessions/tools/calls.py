"""Calls in the text of a `tool_call` lane, each found the moment its closing brace arrives.

A call is a JSON object `{"name": …, "arguments": {…}}`. It may stand bare, between `<tool_call>` tags as Qwen and
Hermes models write it, in an array, or amid prose; `parameters` is read as `arguments`, as Llama models write it.

    prose ──{──▶ opened ──"──▶ object ── its last } ──▶ a call, or a malformed one
      ▲            │other        │ cannot become JSON
      ├────────────┘             ▼
      └── brackets balance, ── broken: reported at once, and skipped
          or a tag

Brackets and commas around objects are prose like any other, so an array needs no state. What lies inside a broken
object, as far as its brackets tell, is not run: where a quotation mark is missing, nobody can tell what was meant as
a call and what as text.
All state moves character by character; how a text is cut into pieces changes nothing.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from braid.errors import InputError

__all__ = ["Call", "CallParser", "call_ids"]

MAX_CALL_CHARS = 1_000_000
"""A longer object is taken for one that never ends."""
MAX_DEPTH = 100
"""Deeper nesting is refused, before a reader that recurses runs out of stack."""

_OPEN_TAG, _CLOSE_TAG = "<tool_call>", "</tool_call>"
_CLOSER = {"{": "}", "[": "]"}
_SPACES = " \t\n\r"
_FORM = '{"name": …, "arguments": {…}}'


@dataclass(frozen=True, slots=True)
class Call:
    """One call that a model wrote.

    Args:
        id: `call_1`, `call_2` and so on, in the order of the session.
        lane: Label of the lane that it was read from.
        name: The tool that is called; empty where none could be read.
        arguments: By name; empty for a malformed call.
        source: The text as it was written.
        error: What is wrong with a malformed call, in words for the model; None for one that can be run.
    """

    id: str
    lane: str
    name: str
    arguments: Mapping[str, Any]
    source: str
    error: str | None = None


def call_ids() -> Iterator[str]:
    """Ids for the calls of one session; all of its parsers share them.

    >>> ids = call_ids()
    >>> next(ids), next(ids)
    ('call_1', 'call_2')
    """
    return (f"call_{number}" for number in itertools.count(1))


class CallParser:
    """Reads the text of one lane as it comes.

    Args:
        lane: The lane's label, for the calls.
        ids: Shared by all lanes of a session; None for a lane alone.

    >>> parser = CallParser("tool_call")
    >>> parser.push('Let me look. {"name": "search", "arguments": {"query": "tea"')
    []
    >>> [(call.id, call.name, call.arguments) for call in parser.push("}} And then")]
    [('call_1', 'search', {'query': 'tea'})]
    """

    def __init__(self, lane: str, ids: Iterator[str] | None = None) -> None:
        self.lane = lane
        self._ids = ids if ids is not None else call_ids()
        self._object: _Object | None = None
        self._tag: _Tag | None = None
        self._tail = ""  # the end of the prose, long enough to recognise a tag

    @property
    def is_reading(self) -> bool:
        """Whether what has come last is, or may become, part of a call: within an object, or between tags."""
        return self._object is not None or self._tag is not None

    def push(self, text: str) -> list[Call]:
        """Take the next piece of the lane's text.

        Returns:
            The calls that it completes, and the malformed ones that it gives away, in order.
        """
        calls: list[Call] = []
        for character in text:
            call = self._take(character)
            if call is not None:
                calls.append(call)
        return calls

    def flush(self) -> list[Call]:
        """Take the end of the lane's text, or of its turn; what follows begins anew.

        Returns:
            The call that was left unfinished, as a malformed one; usually none.
        """
        call = None
        if self._object is not None and not self._object.is_broken:
            call = self._malformed(self._object.source, f"the call is not finished; write {_FORM} to its end")
        elif self._tag is not None:
            call = self._leave_tag()
        self._object, self._tag, self._tail = None, None, ""
        return [call] if call is not None else []

    def _take(self, character: str) -> Call | None:
        current = self._object
        if current is None:
            return self._take_prose(character)
        if current.is_broken:
            return self._take_broken(current, character)
        if not current.has_begun and character not in _SPACES and character not in "\"'":
            # Prose, such as {this}; an object begins with a key. Single quotes are a slip that is worth telling.
            self._object = None
            return self._take_prose(character)
        reason = current.take(character)
        if reason is not None:
            return self._malformed(current.source, reason)
        if current.is_complete:
            self._object = None
            return self._read(current.source)
        return None

    def _take_prose(self, character: str) -> Call | None:
        tag = self._tag_that_ends_with(character)
        if tag is not None:
            return self._at_tag(tag)
        if self._tag is not None:
            self._tag.take(character)
        if character == "{":
            self._object = _Object()
        return None

    def _take_broken(self, current: _Object, character: str) -> Call | None:
        tag = self._tag_that_ends_with(character)
        if tag is not None:
            return self._at_tag(tag)
        if current.skip(character):
            self._object = None
        return None

    def _tag_that_ends_with(self, character: str) -> str | None:
        self._tail = (self._tail + character)[-len(_CLOSE_TAG) :]
        if character != ">":
            return None
        return next((tag for tag in (_OPEN_TAG, _CLOSE_TAG) if self._tail.endswith(tag)), None)

    def _at_tag(self, tag: str) -> Call | None:
        self._object = None
        call = self._leave_tag() if self._tag is not None else None
        self._tag = _Tag() if tag == _OPEN_TAG else None
        return call

    def _leave_tag(self) -> Call | None:
        """Whatever stands between tags is meant as a call; report it where none was found there."""
        assert self._tag is not None
        source = self._tag.text.strip()
        if self._tag.has_call or not source:
            return None
        return self._malformed(source, f"there is no JSON object between the tags; write {_FORM}")

    def _read(self, source: str) -> Call:
        """The call that a whole object spells."""
        try:
            # Not strict: models put line breaks into strings as they are.
            data: object = json.loads(source, strict=False, parse_constant=_refuse_constant)
        except json.JSONDecodeError as error:
            return self._malformed(source, f"not JSON: {error.msg} at character {error.pos}")
        except ValueError as error:  # a number that is none, or one with thousands of digits
            return self._malformed(source, f"not JSON: {error}")
        assert isinstance(data, dict)
        call = cast("dict[str, Any]", data)
        name = call.get("name")
        if not isinstance(name, str) or not name:
            return self._malformed(source, f"a call needs the name of a tool: {_FORM}")
        arguments = call.get("arguments", call.get("parameters"))
        if arguments is None:
            arguments = {}
        if not isinstance(arguments, dict):
            return self._malformed(source, f"arguments must be an object: {_FORM}", name)
        return self._call(source, name, cast("dict[str, Any]", arguments), None)

    def _malformed(self, source: str, error: str, name: str = "") -> Call:
        return self._call(source, name, {}, error)

    def _call(self, source: str, name: str, arguments: Mapping[str, Any], error: str | None) -> Call:
        if self._tag is not None:
            self._tag.has_call = True
        return Call(next(self._ids), self.lane, name, arguments, source, error)


@dataclass(slots=True)
class _Tag:
    """What has been written since a `<tool_call>`."""

    has_call: bool = False
    characters: list[str] = field(default_factory=list[str])

    def take(self, character: str) -> None:
        if not self.has_call and len(self.characters) < MAX_CALL_CHARS:
            self.characters.append(character)

    @property
    def text(self) -> str:
        # The closing tag but for its last character has been taken for text.
        return "".join(self.characters).removesuffix(_CLOSE_TAG[:-1]).removesuffix(_OPEN_TAG[:-1])


class _Object:
    """A JSON object that is being written, from its first brace on.

    It follows strings and brackets only: enough to know where the object ends, and to notice a missing quotation
    mark early. The rest is checked when it is whole.
    """

    def __init__(self) -> None:
        self.has_begun = False
        self.is_broken = False
        self._characters = ["{"]
        self._closers = ["}"]
        self._is_in_string = False
        self._is_escaped = False
        self._is_after_string = False

    @property
    def source(self) -> str:
        """What has been written of it; of a broken one, up to where it broke."""
        return "".join(self._characters)

    @property
    def is_complete(self) -> bool:
        """Whether the brace that it began with is closed."""
        return not self._closers

    def take(self, character: str) -> str | None:
        """Take the next character; returns what is wrong once this can become no JSON any more."""
        self._characters.append(character)
        self.has_begun = self.has_begun or character not in _SPACES
        if len(self._characters) > MAX_CALL_CHARS:
            reason = f"the call is longer than {MAX_CALL_CHARS} characters"
        elif self._is_in_string:
            self._take_in_string(character)
            return None
        else:
            reason = self._take_between_strings(character)
        if reason is not None:
            self.is_broken = True
            self.skip(character)
        return reason

    def skip(self, character: str) -> bool:
        """Take a character of a broken object, whose strings mean nothing; returns whether its brackets balance."""
        if character in _CLOSER:
            self._closers.append(_CLOSER[character])
        elif character in self._closers:
            while self._closers.pop() != character:
                pass
        return self.is_complete

    def _take_in_string(self, character: str) -> None:
        if self._is_escaped:
            self._is_escaped = False
        elif character == "\\":
            self._is_escaped = True
        elif character == '"':
            self._is_in_string, self._is_after_string = False, True

    def _take_between_strings(self, character: str) -> str | None:
        if character in _SPACES:
            return None
        if self._is_after_string and character not in ",:}]":
            where = len(self._characters) - 1
            return (
                f"not JSON: {character!r} follows a string at character {where}; "
                'inside of a string, write \\" for a quotation mark'
            )
        self._is_after_string = False
        if character == '"':
            self._is_in_string = True
        elif character in _CLOSER:
            if len(self._closers) == MAX_DEPTH:
                return f"the call is nested more than {MAX_DEPTH} deep"
            self._closers.append(_CLOSER[character])
        elif character in "}]":
            if character != self._closers[-1]:
                return f"not JSON: {character!r} stands where {self._closers[-1]!r} must"
            self._closers.pop()
        return None


def _refuse_constant(name: str) -> object:
    raise InputError(f"{name} is no number in JSON")
