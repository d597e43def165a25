"""Transcripts as chat messages, and chat messages as transcripts.

A turn becomes the messages of its inputs (`system`, `user`, `tool`) and one of the assistant: what clients saw as
`content`, what they did not see as `reasoning_content`. When streams spoke is lost on the way; the way back lays all
tokens out one after another.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from braid.errors import TranscriptError
from braid.streams.entries import LifeEvent, Row
from braid.streams.lanes import Lane
from braid.streams.text import Codec, IncrementalTokenizer
from braid.streams.topology import Topology
from braid.streams.transcript import Cell, Transcript

__all__ = ["from_messages", "to_messages"]

BLANK_LINE = "\n\n"
ROLE_OF = {"system": "system", "tool_result": "tool"}  # all other inputs speak for the user
KEYS = {"role", "content", "reasoning_content"}


def to_messages(transcript: Transcript) -> list[dict[str, str]]:
    """Return a transcript as chat messages.

    Args:
        transcript: any; streams without text in a turn leave no message there.

    Returns:
        `{"role": …, "content": …}` each, for the assistant with `reasoning_content` where internal streams spoke.
        Several streams of one role follow each other after blank lines; several internal ones are named.
    """
    system = transcript.topology.system
    messages = [{"role": "system", "content": system}] if system else []
    for rows in transcript.turns():
        messages += _messages_of_turn(transcript, rows)
    return messages


def _messages_of_turn(transcript: Transcript, rows: Sequence[Row]) -> Iterator[dict[str, str]]:
    asked: dict[str, list[str]] = {}
    said: list[str] = []
    thought: list[tuple[str, str]] = []
    for lane in _in_order(transcript.lanes.lanes, rows):
        spec = transcript.topology.streams[lane.stream]
        text = "".join(row.cells[lane.label].text for row in rows if lane.label in row.cells)
        if not text:
            continue
        if spec.is_input:
            asked.setdefault(ROLE_OF.get(lane.stream, "user"), []).append(text)
        elif spec.visibility == "external":
            said.append(text)
        else:
            thought.append((lane.label, text))
    for role, texts in asked.items():
        yield {"role": role, "content": BLANK_LINE.join(texts)}
    if said or thought:
        answer = {"role": "assistant", "content": BLANK_LINE.join(said)}
        if len(thought) == 1:
            answer["reasoning_content"] = thought[0][1]
        elif thought:
            answer["reasoning_content"] = BLANK_LINE.join(f"[{label}]\n{text}" for label, text in thought)
        yield answer


def _in_order(lanes: Sequence[Lane], rows: Sequence[Row]) -> list[Lane]:
    """Return lanes by the row of their first token; lanes of one row keep their order."""
    first = {label: index for index, row in reversed(list(enumerate(rows))) for label in row.cells}
    return sorted(lanes, key=lambda lane: first.get(lane.label, len(rows)))


def from_messages(
    messages: Sequence[Mapping[str, Any]], topology: Topology, codec: Codec, model: str = ""
) -> Transcript:
    """Return chat messages as a transcript, one token a row.

    Args:
        messages: as `to_messages` gives them. In a turn, each role speaks once, the assistant last.
        topology: says which streams take what: `user` or the only input, `system`, `tool_result`, the only external
            output and the only internal one.
        codec: the tokenizer.
        model: name of the model.

    Raises:
        TranscriptError: if the topology has no place for a message, or the transcript could not be told from that of
            other messages.
    """
    transcript = Transcript(topology, model)
    spoken: set[str] = set()
    t = 0
    for number, message in enumerate(messages):
        role = _checked(message, number)
        if number == 0 and role == "system" and message["content"] == topology.system:
            continue
        if not spoken or "assistant" in spoken:
            transcript.append(LifeEvent(t, "turn"))
            spoken = set()
        if role in spoken:
            raise TranscriptError(f"message {number}: the {role} speaks twice in one turn; join the messages")
        spoken.add(role)
        for stream, text in _streams_of(message, role, topology, number):
            tokenizer = IncrementalTokenizer(codec)
            for token, piece in (*tokenizer.write(text), *tokenizer.flush()):
                transcript.append(Row(t, {stream: Cell(token, piece)}))
                t += 1
    return transcript


def _checked(message: Mapping[str, Any], number: int) -> str:
    """Return the role of a message whose form is right."""
    role = message.get("role")
    if not isinstance(role, str) or role not in ("system", "user", "tool", "assistant"):
        raise TranscriptError(f"message {number}: the role is system, user, tool or assistant, not {role!r}")
    if unknown := message.keys() - KEYS:
        raise TranscriptError(f"message {number}: a transcript has no place for {', '.join(sorted(unknown))}")
    if role != "assistant" and "reasoning_content" in message:
        raise TranscriptError(f"message {number}: only the assistant has reasoning_content")
    texts = [message.get("content"), message.get("reasoning_content", "")]
    if not all(isinstance(text, str) for text in texts):
        raise TranscriptError(f"message {number}: content and reasoning_content are text")
    if not any(texts):
        raise TranscriptError(f"message {number}: it is empty; leave it out")
    return role


def _streams_of(
    message: Mapping[str, Any], role: str, topology: Topology, number: int
) -> Iterator[tuple[str, str]]:
    """Return which streams take the texts of a message, in the order in which they come to be."""
    if role != "assistant":
        yield _input_for(role, topology, number), message["content"]
        return
    for key, visibility in (("reasoning_content", "internal"), ("content", "external")):
        if message.get(key):
            found = [
                name for name in topology.output_names if topology.streams[name].visibility == visibility
            ]
            if len(found) != 1:
                raise TranscriptError(
                    f"message {number}: {key} needs exactly one {visibility} output stream; this topology has "
                    f"{', '.join(found) or 'none'}"
                )
            yield found[0], message[key]


def _input_for(role: str, topology: Topology, number: int) -> str:
    names = [name for name in topology.input_names if ROLE_OF.get(name, "user") == role]
    if len(names) == 1 or "user" in names:
        return "user" if "user" in names else names[0]
    if role == "system":
        raise TranscriptError(
            f"message {number}: the topology has neither an input stream `system` nor this text as its `system` prompt"
        )
    raise TranscriptError(
        f"message {number}: role {role!r} needs one input stream; this topology has {', '.join(names) or 'none'}"
    )
