"""Transcripts as chat messages, and back."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from braid.errors import TranscriptError
from braid.model.codec import TokenizerCodec
from braid.streams.chat import from_messages, to_messages
from braid.streams.topology import StreamSpec, Topology
from braid.streams.transcript import Cell, LifeEvent, Row, Transcript
from tests.fakes import byte_tokenizer

THOUGHT = StreamSpec(direction="output", visibility="internal", max_streams=2)
AGENT = Topology(
    streams={
        "system": StreamSpec(direction="input"),
        "user": StreamSpec(direction="input"),
        "document": StreamSpec(direction="input"),
        "tool_result": StreamSpec(direction="input"),
        "thought": THOUGHT,
        "output": StreamSpec(direction="output"),
    }
)
PLAIN = Topology(
    streams={"question": StreamSpec(direction="input"), "output": StreamSpec(direction="output")},
    decoding="views",
    system="Be brief.",
)

contents = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)


@cache
def codec() -> TokenizerCodec:
    return TokenizerCodec(byte_tokenizer())


@st.composite
def conversations(draw: st.DrawFn) -> list[dict[str, str]]:
    messages: list[dict[str, str]] = []
    for _ in range(draw(st.integers(0, 3))):
        roles = draw(st.permutations(["system", "user", "tool"]))[: draw(st.integers(1, 3))]
        messages += [{"role": role, "content": draw(contents)} for role in roles]
        answer = {"role": "assistant", "content": draw(contents)}
        if draw(st.booleans()):
            answer["reasoning_content"] = draw(contents)
        messages.append(answer)
    return messages


@given(messages=conversations())
def test_messages_survive_the_round_trip(messages: list[dict[str, str]]) -> None:
    transcript = from_messages(messages, AGENT, codec(), model="tiny")
    assert to_messages(transcript) == messages
    assert [row.t for row in transcript.rows] == list(range(len(transcript.rows)))


def test_system_prompts_of_stock_models() -> None:
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "How many?"},
        {"role": "assistant", "content": "Two."},
        {"role": "user", "content": "Sure?"},
    ]
    transcript = from_messages(messages, PLAIN, codec())
    assert transcript.text("question") == "How many?Sure?"
    assert to_messages(transcript) == messages
    assert to_messages(from_messages(messages[1:], PLAIN, codec())) == messages


def test_streams_that_speak_at_once() -> None:
    transcript = Transcript(AGENT, "tiny", {"thought": 2})

    def row(t: int, **words: str) -> Row:
        return Row(t, {label.replace("_1", "#1"): Cell(1, text) for label, text in words.items()})

    for entry in (
        LifeEvent(0, "turn"),
        row(0, user="How", document="A "),
        row(1, user=" many?", document="book.", thought="2", thought_1="x"),
        row(2, thought="+3", output="Fi", thought_1="y"),
        row(3, tool_result="ok", output="ve."),
        row(4, output=""),
        LifeEvent(5, "turn"),
        row(5, user="Thanks"),
    ):
        transcript.append(entry)
    assert to_messages(transcript) == [
        {"role": "user", "content": "How many?\n\nA book."},
        {"role": "tool", "content": "ok"},
        {"role": "assistant", "content": "Five.", "reasoning_content": "[thought]\n2+3\n\n[thought#1]\nxy"},
        {"role": "user", "content": "Thanks"},
    ]


def user(text: Any = "a", **more: Any) -> dict[str, Any]:
    return {"role": "user", "content": text, **more}


@pytest.mark.parametrize(
    ("messages", "problem"),
    [
        ([user(), user()], "message 1: the user speaks twice"),
        ([{"role": "oracle", "content": "x"}], "message 0: the role is"),
        ([{"content": "x"}], "message 0: the role is"),
        ([user(name="Ann")], "no place for name"),
        ([user(reasoning_content="x")], "only the assistant"),
        ([user([{"type": "text"}])], "are text"),
        ([user(None)], "are text"),
        ([user("")], "message 0: it is empty"),
        ([{"role": "tool", "content": "x"}], "role 'tool' needs one input stream; this topology has none"),
        ([{"role": "system", "content": "Other."}], "neither an input stream `system` nor this text"),
        ([{"role": "assistant", "content": "x", "reasoning_content": "y"}], "exactly one internal output"),
    ],
)
def test_what_has_no_place_is_refused(messages: list[dict[str, Any]], problem: str) -> None:
    with pytest.raises(TranscriptError, match=problem):
        from_messages(messages, PLAIN, codec())


def test_which_stream_must_be_plain() -> None:
    two = Topology(
        streams={
            "left": StreamSpec(direction="input"),
            "right": StreamSpec(direction="input"),
            "one": StreamSpec(direction="output"),
            "two": StreamSpec(direction="output"),
        }
    )
    with pytest.raises(TranscriptError, match="this topology has left, right"):
        from_messages([user()], two, codec())
    with pytest.raises(TranscriptError, match="this topology has one, two"):
        from_messages([{"role": "assistant", "content": "x"}], two, codec())
