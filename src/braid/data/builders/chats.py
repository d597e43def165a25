"""From chats with reasoning to streams: the thought follows the question sentence by sentence.

The reasoning of an ordinary chat was written with the whole question in sight. Here its sentences are placed by wait-k
over the question's segments (sentence `i` waits for the first `i + k - 1` of them), and from there the validator moves
each on until it could be known. The answer comes last.

    user      s1    s2    s3    s4            k = 2
    thought         r1    r2    r3    r4
    output                               a1 a2
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from braid.data.causality import Judge, Verdict, validate
from braid.data.score import Part, Score, Segment
from braid.data.sentences import split_sentences

__all__ = ["chat_score", "place_by_wait_k"]


def chat_score(chat: Score, wait_k: int = 1, judge: Judge | None = None) -> Verdict:
    """The score of a chat whose thought follows its question.

    Args:
        chat: One from `braid.data.chat_files.read_chats`.
        wait_k: Segments of the question that have been read when the thought begins.
        judge: For free text, where the rules see too little.

    Returns:
        The score, what was moved, and what could not be known at all. That is much in free text; a caller that wants
        the rules alone to vouch for an example leaves those out that do not hold.
    """
    parts = [replace(part, segments=_segments(part)) for part in chat.parts]
    inputs = {part.stream: len(part.segments) for part in parts if part.direction == "input"}
    main = "user" if "user" in inputs else next(iter(inputs))
    placed: list[Part] = []
    for part in parts:
        if part.stream == "thought":
            placed.append(place_by_wait_k(part, inputs, main, wait_k))
        elif part.direction == "output":
            thoughts = {each.stream: len(each.segments) for each in placed if each.direction == "output"}
            first, *rest = part.segments
            placed.append(replace(part, segments=(Segment(first.text, {**inputs, **thoughts}), *rest)))
        else:
            placed.append(part)
    score = Score(chat.id, tuple(placed), {**chat.meta, "wait_k": wait_k, "num_steps": _num_steps(placed)})
    return validate(score, judge=judge)


def place_by_wait_k(part: Part, inputs: Mapping[str, int], main: str, wait_k: int) -> Part:
    """A thought whose segments follow those of its main input at a distance; other inputs are read whole before.

    Args:
        part: The thought.
        inputs: Input → how many segments it has.
        main: The input that is followed.
        wait_k: Segments of it that have been read when the thought begins.
    """
    before = {name: count for name, count in inputs.items() if name != main}
    segments = [
        Segment(segment.text, {**before, main: min(place + wait_k, inputs[main])})
        for place, segment in enumerate(part.segments)
    ]
    return replace(part, segments=tuple(segments))


def _segments(part: Part) -> tuple[Segment, ...]:
    return tuple(Segment(text) for text in split_sentences(part.text))


def _num_steps(parts: Sequence[Part]) -> int:
    return sum(len(part.segments) for part in parts if part.stream == "thought")
