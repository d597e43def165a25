"""Templates: an input that consists of named segments, some of them fixed, the others slots that are filled in.

    [rules, fixed][document: slot of 256 tokens, or of its own positions][ask, fixed][question: slot]
     └── user ──┘                                                      └───────── user ────────────┘

Segments that follow one another are joined to one text. A slot may have `room`: it is filled up with blanks to a
multiple of so many tokens, so that whatever stands behind it keeps its tokens and their places while the slot is
edited within its room; text that no longer fits gets another whole room. A slot with `positions="local"` is an input
stream of its own, see `Template.topology`: what stands behind it is a stream, too, whose tokens stay what they are
and where they are in it, however long the slot becomes.

Segments of another role than the last one's are messages before the input, as in a chat.

What is filled in is what the model reads, blanks included: a session that is told the same texts at once, without a
template, becomes the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Protocol, Self

from pydantic import Field, ValidationError, model_validator

from braid.errors import (
    BraidError,
    FixedSegmentError,
    InputError,
    RepeatedSegmentError,
    TemplateError,
    UnknownSegmentError,
)
from braid.streams.strict import StrictModel, hint, problem, shown, translated
from braid.streams.topology import Topology

__all__ = ["Filled", "FittedTemplate", "Segment", "Template", "Texts", "merged"]

Role = Literal["system", "developer", "user", "assistant", "tool"]

_BLANKS = (" ", "\n", " .", " _", " -", " ~", "~", "|")
"""What may fill a slot up where nobody says otherwise: the first of which each more is one token more."""

_FEW_BLANKS, _MANY_BLANKS = 3, 16
_MOST_TRIES = 16
_KEYS = ("id", "text", "role")

Texts = Mapping[str, str]
Told = Texts | Sequence[Mapping[str, Any]]
"""What a client says of segments: text by id, or `{"id": …, "text": …}` each."""


class Encodes(Protocol):
    """A tokenizer, such as a model's codec."""

    def encode(self, text: str, /) -> tuple[Sequence[int], Any]:
        """The tokens of a text, and what else there is to say of them."""
        ...


class Segment(StrictModel):
    """A part of a template.

    Args:
        id: Its name.
        fixed: Its text; None makes it a slot, which snapshots fill.
        role: Whose message it is part of.
        room: Slots: tokens by which it grows; blanks fill it up to a multiple of them.
        positions: `joined` to its neighbours, or `local`, an input stream of its own.

    Raises:
        TemplateError: These do not go together.
    """

    refusal: ClassVar[type[BraidError]] = TemplateError

    id: Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_-]*$")]
    fixed: str | None = None
    role: Role = "user"
    room: Annotated[int, Field(ge=2, le=65_536, strict=True)] | None = None
    positions: Literal["joined", "local"] = "joined"

    @model_validator(mode="after")
    def _goes_together(self) -> Self:
        if self.fixed is not None and self.room is not None:
            raise problem("a fixed text does not grow, and needs no room", key="room")
        return self


class Template(StrictModel):
    """Segments in their order.

    Args:
        segments: At least one of them is a slot; those of the last one's role at the end are the input, those before
            them are messages.
        blank: What fills a slot up to its room; None takes one that the tokenizer has a token for.

    Raises:
        TemplateError: There is no slot; an id stands for two segments; a local segment is none of the input's.
        UnknownKeyError: There is no such option.
    """

    refusal: ClassVar[type[BraidError]] = TemplateError

    segments: tuple[Segment, ...]
    blank: Annotated[str, Field(min_length=1)] | None = None

    @classmethod
    def of(cls, source: Template | Mapping[str, Any]) -> Template:
        """The template that plain data spells; raises what the constructor raises."""
        if isinstance(source, Template):
            return source
        try:
            return cls.model_validate(source)
        except ValidationError as error:
            raise translated(error, cls.refusal) from None

    def to_dict(self) -> dict[str, Any]:
        """Plain data, which `of` reads back."""
        return self.model_dump(mode="json", exclude_defaults=True)

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        if not any(segment.fixed is None for segment in self.segments):
            raise problem("there is no slot; leave `fixed` out of what is to be filled in", key="segments")
        seen: set[str] = set()
        for segment in self.segments:
            if segment.id in seen:
                raise problem(
                    f"two segments are called {segment.id}; give each an id of its own", key="segments"
                )
            seen.add(segment.id)
        if self.segments[-1].role not in ("user", "tool"):
            raise problem("the last segment is the user's, to whom the model answers", key="segments")
        for segment in self.segments[: -len(self.asking)]:
            if segment.positions == "local":
                raise problem(
                    f"{segment.id} is part of a message before the input, and only the input consists of streams; "
                    "leave `positions` out",
                    key="segments",
                )
        return self

    @property
    def asking(self) -> tuple[Segment, ...]:
        """The segments at the end that are the input."""
        runs = [tuple(run) for _, run in groupby(self.segments, lambda segment: segment.role)]
        return runs[-1]

    @property
    def pieces(self) -> tuple[tuple[Segment, ...], ...]:
        """The input's segments, stream by stream."""
        pieces: list[list[Segment]] = []
        for segment in self.asking:
            follows = pieces and "local" not in (segment.positions, pieces[-1][-1].positions)
            if follows:
                pieces[-1].append(segment)
            else:
                pieces.append([segment])
        return tuple(tuple(piece) for piece in pieces)

    def topology(self, base: Topology) -> Topology:
        """The topology that the template needs.

        Args:
            base: Its first input becomes that of the last piece; the pieces before it become inputs of the same kind,
                each named after its first segment. Without local segments nothing changes.

        Raises:
            TemplateError: It has no input, or decodes rows, where positions are shared by all; a name is taken.
        """
        *before, _ = self.pieces
        if not base.input_names:
            raise TemplateError("the topology has no input stream that could be filled in")
        if not before:
            return base
        if base.decoding != "views":
            raise TemplateError(
                "local positions are for topologies of views; in one of rows all streams stand at the same positions: "
                "leave `positions` out"
            )
        asked, names = base.input_names[0], [piece[0].id for piece in before]
        for name in names:
            if name in base.streams:
                raise TemplateError(
                    f"segment {name} becomes a stream, and the topology has one of this name; rename one of them"
                )
        data = base.to_dict()
        streams = dict(data["streams"])
        at = list(streams).index(asked)
        items = list(streams.items())
        data["streams"] = dict([*items[:at], *((name, streams[asked]) for name in names), *items[at:]])
        for reader, read in data.get("reads", {}).items():
            data["reads"][reader] = [*names, *read] if asked in read else read
        return Topology.from_dict(data)

    def fitted(self, codec: Encodes | None, topology: Topology) -> FittedTemplate:
        """The template for one tokenizer and topology.

        Args:
            codec: The model's; needed where slots have room.
            topology: Of the session.

        Raises:
            TemplateError: The topology lacks a piece's stream; nothing would be a blank.
        """
        names = topology.input_names
        expected = [piece[0].id for piece in self.pieces[:-1]]
        if len(names) <= len(expected) or list(names[: len(expected)]) != expected:
            raise TemplateError(
                f"the template needs the inputs {', '.join((*expected, 'one more'))} first, and the topology has "
                f"{', '.join(names) or 'none'}; open the session with `template.topology(…)`"
            )
        blank = ""
        if any(segment.room for segment in self.segments):
            if codec is None:
                raise TemplateError(
                    "room is counted in the model's tokens, and this engine has no tokenizer here"
                )
            blank = _blank(codec, self.blank)
        return FittedTemplate(self, tuple(names[: len(expected) + 1]), codec, blank)


def _blank(codec: Encodes, wanted: str | None) -> str:
    """What a slot is filled up with: each more of it is one token more."""
    for blank in _BLANKS if wanted is None else (wanted,):
        lengths = [len(codec.encode(f"a{blank * count}")[0]) for count in range(_FEW_BLANKS, _MANY_BLANKS)]
        if lengths == list(range(lengths[0], lengths[0] + len(lengths))):
            return blank
    if wanted is not None:
        raise TemplateError(
            f"{shown(wanted)} is no blank for this tokenizer, in which one more of it is not one token more; leave "
            "`blank` out, or take another"
        )
    raise TemplateError(
        f"this tokenizer has a token for none of the usual blanks ({', '.join(map(repr, _BLANKS))}); name one as "
        "`blank`, or leave `room` out"
    )


class Filled(NamedTuple):
    """A template that is filled in.

    Args:
        texts: By input stream.
        messages: The whole conversation, whose last message is the first input's text, which `texts` then lacks; None
            where the template has no message before the input.
    """

    texts: dict[str, str]
    messages: list[dict[str, Any]] | None


class FittedTemplate(NamedTuple):
    """A template for one tokenizer and topology; made by `Template.fitted`."""

    template: Template
    streams: tuple[str, ...]
    """The input stream of each piece."""
    codec: Encodes | None
    blank: str

    def fill(self, texts: Texts) -> Filled:
        """Fill the slots.

        Args:
            texts: By slot; those that are not named are empty.

        Raises:
            TemplateError: Blanks do not stay tokens of their own beside this text.
        """
        told = {
            stream: self._joined(piece, texts)
            for stream, piece in zip(self.streams, self.template.pieces, strict=True)
        }
        before = self.template.segments[: -len(self.template.asking)]
        if not before:
            return Filled(told, None)
        messages: list[dict[str, Any]] = [
            {"role": role, "content": self._joined(list(run), texts)}
            for role, run in groupby(before, lambda segment: segment.role)
        ]
        first = self.streams[0]
        messages.append({"role": self.template.segments[-1].role, "content": told.pop(first)})
        return Filled(told, messages)

    def is_empty(self, texts: Texts) -> bool:
        """Whether no slot of the input has any text."""
        return not any(texts.get(segment.id) for segment in self.template.asking if segment.fixed is None)

    def _joined(self, segments: Sequence[Segment], texts: Texts) -> str:
        joined = ""
        for segment in segments:
            text = texts.get(segment.id, "") if segment.fixed is None else segment.fixed
            joined += text if segment.room is None else self._filled_up(joined, text, segment)
        return joined

    def _filled_up(self, before: str, text: str, segment: Segment) -> str:
        """A slot's text with so many blanks, one at least, that what follows begins at the end of a room."""
        assert self.codec is not None
        assert segment.room is not None
        encode, room = self.codec.encode, segment.room
        start = len(encode(before)[0])
        count = len(encode(before + text)[0]) - start
        num_blanks = -count % room or room
        for _ in range(_MOST_TRIES):
            found = len(encode(before + text + self.blank * num_blanks)[0]) - start
            if found > 0 and not found % room:
                return text + self.blank * num_blanks
            num_blanks += -found % room
        raise TemplateError(
            f"blanks do not stay tokens of their own behind the text of {segment.id}; name another `blank`"
        )


def merged(template: Template, before: Texts, told: Told) -> dict[str, str]:
    """The texts of all slots after a snapshot; those that it does not name are as before.

    Args:
        template: Whose slots.
        before: What they held.
        told: What the snapshot says.

    Raises:
        UnknownSegmentError, FixedSegmentError
        RepeatedSegmentError: Two of them have the same id.
        TemplateError: One is no text, or of another role than in the template.
    """
    known = {segment.id: segment for segment in template.segments}
    texts = dict(before)
    for name, text, role in listed(told):
        segment = known.get(name)
        if segment is None:
            raise UnknownSegmentError(f"there is no segment {shown(name)}; {hint(name, known)}")
        if role is not None and role != segment.role:
            raise TemplateError(f"segment {name} is the {segment.role}'s, and cannot become the {role}'s")
        if segment.fixed is None:
            texts[name] = text
        elif text != segment.fixed:
            slots = ", ".join(other.id for other in template.segments if other.fixed is None)
            raise FixedSegmentError(
                f"the text of segment {name} is the template's, and does not change; what may change: {slots}"
            )
    return texts


def listed(told: Told) -> list[tuple[str, str, str | None]]:
    """Segments as a client says them: id, text, and role, if it says one.

    Raises:
        TemplateError, RepeatedSegmentError
    """
    if isinstance(told, Mapping):
        entries: list[Mapping[str, Any]] = [{"id": name, "text": text} for name, text in told.items()]
    else:
        entries = list(told)
    found: list[tuple[str, str, str | None]] = []
    for number, entry in enumerate(entries):
        for key in entry:
            if key not in _KEYS:
                raise TemplateError(
                    f"segment {number} has the unknown key {shown(key)}; {hint(str(key), _KEYS)}"
                )
        name, text, role = entry.get("id"), entry.get("text", ""), entry.get("role")
        if not isinstance(name, str) or not name:
            raise TemplateError(f"segment {number} has no id; give it one, such as question")
        if not isinstance(text, str):
            raise TemplateError(f"segment {name}: its text is text, not {type(text).__name__}")
        if any(name == other for other, _, _ in found):
            raise RepeatedSegmentError(
                f"the snapshot tells segment {name} twice; say it once, with all of its text"
            )
        found.append((name, text, role))
    if not found:
        raise InputError("the snapshot has no segments; say at least one, empty as it may be")
    return found
