"""What holds of every score, whoever wrote it, so that it can be laid out for any tokenizer and any arrival."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from braid.data.rules import Broken, broken_keys, broken_objects, broken_order
from braid.data.score import Part, Score, Segment
from braid.data.tokens import DataTokenizer
from braid.streams.strict import shown
from braid.streams.topology import Topology

__all__ = ["SCORE_RULES", "broken_score", "broken_shape"]

SCORE_RULES = {
    "json": "a line is JSON",
    "keys": "a score, its parts and their segments have the keys of the format, and no others",
    "types": "what stands there is of the right kind",
    "id": "no two scores have the same id",
    "streams": "streams are those of the topology, in its order and of its directions, each once",
    "text": "a segment has a text, and with a tokenizer at least one token, none of them silence, padding or an end",
    "after": "a segment waits for what the score has, and a part reads inputs that the score has",
    "waits": "an input speaks first, and nobody waits for what never comes",
}
"""Rule → what it asks."""


def broken_shape(data: object) -> Iterator[Broken]:
    """Every fault in the keys and types of a score as plain data."""
    if not isinstance(data, Mapping):
        yield Broken("types", f"a score is an object, not {shown(data)}")
        return
    score = cast("Mapping[str, Any]", data)
    yield from broken_keys(score, ("id", "parts"), "a score", optional=("meta",))
    name, parts, meta = score.get("id", "x"), score.get("parts", []), score.get("meta")
    if not (isinstance(name, str) and name):
        yield Broken("types", f"id is text, not {shown(name)}")
    if meta is not None and not isinstance(meta, Mapping):
        yield Broken("types", f"meta is an object, not {shown(meta)}")
    yield from broken_objects(parts, "parts", "part", _part_shape)


def _part_shape(part: Mapping[str, Any], place: int) -> Iterator[Broken]:
    named, direction = part.get("stream", "x"), part.get("direction", "input")
    name = named if isinstance(named, str) and "stream" in part else None
    wanted = ("stream", "direction", "segments")
    yield from broken_keys(part, wanted, f"part {place}", name, optional=("ends", "reads"))
    if not (isinstance(named, str) and named):
        yield Broken("types", f"the stream of part {place} is text, not {shown(named)}")
    if direction not in ("input", "output"):
        yield Broken("types", f"direction is input or output, not {shown(direction)}", name)
    if not isinstance(part.get("ends", True), bool):
        yield Broken("types", f"ends is true or false, not {shown(part['ends'])}", name)
    reads = part.get("reads", [])
    if not (isinstance(reads, list) and all(isinstance(each, str) for each in cast("list[Any]", reads))):
        yield Broken("types", f"reads is a list of streams, not {shown(reads)}", name)
    segments = part.get("segments", [])
    if not isinstance(segments, list):
        yield Broken("types", f"segments is a list, not {shown(segments)}", name)
        return
    for number, segment in enumerate(cast("list[Any]", segments)):
        if isinstance(segment, Mapping):
            yield from _segment_shape(cast("Mapping[str, Any]", segment), name, number)
        else:
            yield Broken("types", f"a segment is an object, not {shown(segment)}", name, segment=number)


def _segment_shape(segment: Mapping[str, Any], stream: str | None, number: int) -> Iterator[Broken]:
    for broken in broken_keys(segment, ("text",), "a segment", stream, optional=("after",)):
        yield Broken(broken.rule, broken.message, stream, segment=number)
    text, after = segment.get("text", "x"), segment.get("after", {})
    if not isinstance(text, str):
        yield Broken("types", f"text is text, not {shown(text)}", stream, segment=number)
    if not isinstance(after, Mapping):
        yield Broken("types", f"after is an object, not {shown(after)}", stream, segment=number)
        return
    for name, count in cast("Mapping[str, Any]", after).items():
        if type(count) is not int or count < 0:
            message = f"after has a whole number from 0 up for {name!r}, not {shown(count)}"
            yield Broken("types", message, stream, segment=number)


def broken_score(
    score: Score, tokenizer: DataTokenizer | None = None, topology: Topology | None = None
) -> Iterator[Broken]:
    """Every rule that a score breaks, whose shape is right."""
    found = [
        *broken_order(score.streams, "parts", topology),
        *(broken for part in score.parts for broken in _part(part, score, tokenizer, topology)),
    ]
    yield from found
    if not found:
        yield from _waits(score.parts)


def _part(
    part: Part, score: Score, tokenizer: DataTokenizer | None, topology: Topology | None
) -> Iterator[Broken]:
    if topology is not None and part.stream in topology.streams:
        wanted = "input" if topology.streams[part.stream].is_input else "output"
        if wanted != part.direction:
            message = f"it is an {part.direction} here, and an {wanted} of the topology"
            yield Broken("streams", message, part.stream)
    inputs = [each.stream for each in score.parts if each.direction == "input"]
    for name in part.reads:
        if name not in inputs:
            message = f"it reads {name!r}, which is no input of the score; there are {', '.join(inputs)}"
            yield Broken("after", message, part.stream)
    for number, segment in enumerate(part.segments):
        for rule, message in (*_text(segment, tokenizer), *_after(segment, score)):
            yield Broken(rule, message, part.stream, segment=number)


def _text(segment: Segment, tokenizer: DataTokenizer | None) -> Iterator[tuple[str, str]]:
    if not segment.text:
        yield "text", "the text is empty; leave the segment out"
    elif tokenizer is not None:
        ids = tokenizer.encode(segment.text)
        special = {tokenizer.silence_id, tokenizer.pad_id, tokenizer.end_id}
        found = next((token for token in ids if token in special), None)
        if not ids:
            yield "text", f"the tokenizer makes no token of {shown(segment.text)}"
        elif found is not None:
            yield (
                "text",
                f"the text has the token {tokenizer.tokenizer.id_to_token(found)}, which no text may have",
            )


def _after(segment: Segment, score: Score) -> Iterator[tuple[str, str]]:
    for name, count in segment.after.items():
        if name not in score.streams:
            yield (
                "after",
                f"it waits for {name!r}, which the score has not; it has {', '.join(score.streams)}",
            )
        elif count > (there := _length(score.part(name))):
            yield "after", f"it waits for {count} segments of {name!r}, which has {there}, its end among them"


def _length(part: Part) -> int:
    """Of its segments; an end counts as one."""
    return len(part.segments) + part.ends


def _waits(parts: Sequence[Part]) -> Iterator[Broken]:
    """Play the segments as fast as they can be, and tell who is left."""
    said = {part.stream: 0 for part in parts}
    has_begun, moves = False, True
    while moves:
        moves = False
        for part in parts:
            # An output is asked in the row before it speaks, and an input has to make the first row.
            while (has_begun or part.direction == "input") and _goes_on(part, parts, said):
                said[part.stream] += 1
                has_begun = moves = True
    if not has_begun:
        yield Broken("waits", "no input has anything to say before an output has spoken")
        return
    for part in parts:
        if said[part.stream] < _length(part):
            place = said[part.stream]
            number = place if place < len(part.segments) else None
            what = f"segment {place}" if number is not None else "its end"
            yield Broken("waits", f"{what} waits for what never comes", part.stream, segment=number)


def _goes_on(part: Part, parts: Sequence[Part], said: Mapping[str, int]) -> bool:
    place = said[part.stream]
    if place >= _length(part):
        return False
    if place < len(part.segments):
        return all(said[name] >= count for name, count in part.segments[place].after.items())
    # The end of an output waits for the last words of what it reads.
    lasts = {each.stream: len(each.segments) for each in parts}
    return part.direction == "input" or all(said[name] >= lasts[name] for name in part.reads)
