"""What a client says of a session's inputs, in whichever way it says it, and what the engine is told of that.

texts by stream                     as they are
[{id, text, role}, …]               filled into the template; without one, joined in their order
[{role, content}, …]                the whole conversation
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from braid.engine.editing.editable import Mode
from braid.errors import EmptyInputError, InputError, TemplateError
from braid.sessions.template import FittedTemplate, Segment, Template, listed, merged
from braid.streams.topology import Topology

__all__ = ["Reading", "Snapshots"]

Messages = Sequence[Mapping[str, Any]]
Segments = Mapping[str, str] | Sequence[Mapping[str, Any]]


class Reading(NamedTuple):
    """A snapshot as the engine takes it.

    Args:
        texts: By input stream.
        messages: The conversation; None where the snapshot says nothing of it.
        segments: The template's slots from now on.
        is_empty: Whether it has segments, and none of them that may change has text.
    """

    texts: dict[str, str]
    messages: list[dict[str, Any]] | None
    segments: dict[str, str]
    is_empty: bool = False

    def arguments(self, mode: Mode) -> tuple[Any, ...]:
        """What the engine's `snapshot` or `commit` takes.

        Args:
            mode: What may be kept behind an edit.
        """
        return (self.texts, mode) if self.messages is None else (self.texts, mode, self.messages)


class Snapshots:
    """Reads the snapshots of one session.

    Args:
        topology: The session's.
        template: What segments are filled into; without one each snapshot says itself which there are.
        segments: What the slots hold, of a turn that was begun in another process.
        is_empty: Whether that was told, and is nothing.
    """

    def __init__(
        self,
        topology: Topology,
        template: FittedTemplate | None = None,
        segments: Mapping[str, str] | None = None,
        is_empty: bool = False,
    ) -> None:
        self._topology = topology
        self.template = template
        self.segments: dict[str, str] = dict(segments or {})
        """Text by slot, since the last commit."""
        self.is_empty = is_empty
        """Whether the newest snapshot has segments, and none of them that may change has text."""

    def read(
        self,
        texts: Mapping[str, str] | str | None = None,
        *,
        segments: Segments | None = None,
        messages: Messages | None = None,
    ) -> Reading:
        """What a snapshot says; nothing is remembered of it before `keep`.

        Args:
            texts: By input stream; a plain string is the first input's.
            segments: By id, those that are not named as before; without a template, all of them.
            messages: The whole conversation.

        Raises:
            InputError: It says nothing, or contradicts itself.
            TemplateError: The segments do not fit the template, by its own class.
        """
        told = self._by_stream(texts)
        if segments is None:
            if texts is None and messages is None:
                raise InputError("a snapshot needs texts, segments or messages")
            plain = None if messages is None else [dict(message) for message in messages]
            return Reading(told, plain, self.segments)
        if messages is not None:
            raise InputError(
                "the snapshot has both segments and messages, and each says what the input is; give segments their "
                "roles, or send messages alone"
            )
        fitted = self.template or _unnamed(segments).fitted(None, self._topology)
        slots = merged(fitted.template, self.segments if self.template else {}, segments)
        filled = fitted.fill(slots)
        for stream in fitted.streams:
            if stream in told:
                raise InputError(f"the snapshot tells {stream} twice: by name, and by its segments")
        return Reading({**told, **filled.texts}, filled.messages, slots, fitted.is_empty(slots))

    def keep(self, reading: Reading) -> None:
        """The engine has taken a snapshot."""
        self.segments, self.is_empty = reading.segments, reading.is_empty

    def require_text(self, reading: Reading | None = None) -> None:
        """Refuse to commit what is nothing but a template.

        Args:
            reading: A last snapshot; None where there is none.

        Raises:
            EmptyInputError
        """
        if self.is_empty if reading is None else reading.is_empty:
            raise EmptyInputError(
                "the committed segments are empty; send a snapshot that fills in at least one first"
            )

    def forget(self) -> None:
        """The turn is committed, or taken back."""
        self.segments, self.is_empty = {}, False

    def _by_stream(self, texts: Mapping[str, str] | str | None) -> dict[str, str]:
        if not isinstance(texts, str):
            return dict(texts or {})
        names = self._topology.input_names
        if not names:
            raise InputError("the topology has no input stream for this text")
        return {names[0]: texts}


def _unnamed(segments: Segments) -> Template:
    """The template of segments that have none: all of them are slots, one behind the other."""
    try:
        return Template(
            segments=tuple(Segment(id=name, role=role or "user") for name, _, role in listed(segments))  # pyright: ignore[reportArgumentType]
        )
    except TemplateError as error:
        raise type(error)(f"the segments of the snapshot make no template: {error}") from None
