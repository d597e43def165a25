"""Chats: an example for each answer, reasoning wherever it stands."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from braid.data.chat_files import read_chats
from braid.errors import DataCorruptError

USER = {"role": "user", "content": "3 + 4?"}


@pytest.mark.parametrize(
    "answer",
    [
        {"role": "assistant", "content": "7", "reasoning_content": "3+4=7"},
        {"role": "assistant", "content": "7", "reasoning": "3+4=7"},
        {"role": "assistant", "content": "<think>\n3+4=7\n</think>\n\n7"},
        {"role": "assistant", "content": [{"type": "text", "text": "7"}], "reasoning_content": "3+4=7"},
    ],
)
def test_reasoning_is_found_where_people_put_it(answer: object, lines: Callable[..., Path]) -> None:
    (score,) = read_chats(lines({"messages": [USER, answer]}))
    assert {part.stream: part.text for part in score.parts} == {
        "user": "3 + 4?",
        "thought": "3+4=7",
        "output": "7",
    }
    assert score.part("output").segments[0].after == {"user": 1, "thought": 1}


@pytest.mark.parametrize("roles", [("human", "gpt"), ("user", "assistant")])
def test_conversations_of_from_and_value(roles: tuple[str, str], lines: Callable[..., Path]) -> None:
    told = [("system", "Be brief."), (roles[0], "3 + 4?"), (roles[1], "<think>3+4=7</think>7")]
    chat = {"conversations": [{"from": role, "value": text} for role, text in told]}
    (score,) = read_chats(lines(chat))
    said = {part.stream: part.text for part in score.parts}
    assert said == {"system": "Be brief.", "user": "3 + 4?", "thought": "3+4=7", "output": "7"}


def test_chats_in_parquet(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    answer = {"role": "assistant", "content": "7", "reasoning_content": "3+4=7"}
    plain = {"role": "assistant", "content": "7"}
    table = arrow.Table.from_pylist([{"messages": [USER, answer]}, {"messages": [USER, plain]}])
    parquet.write_table(table, tmp_path / "chats.parquet")
    first, second = read_chats(tmp_path / "chats.parquet")
    assert (first.part("thought").text, first.part("output").text) == ("3+4=7", "7")
    assert (second.id, second.streams) == ("chats-2", ["user", "output"])


def test_system_and_earlier_turns_are_streams_of_their_own(lines: Callable[..., Path]) -> None:
    messages = [
        {"role": "system", "content": "Be brief."},
        USER,
        {"role": "assistant", "content": "7"},
        {"role": "user", "content": "And 5 more?"},
        {"role": "assistant", "content": "12", "reasoning_content": "7+5=12"},
    ]
    first, second = read_chats(lines({"id": "c", "messages": messages}))
    assert (first.id, second.id) == ("c-1", "c-2")
    assert first.streams == ["system", "user", "output"]
    assert second.part("history").text == "user: 3 + 4?\nassistant: 7"
    assert second.part("user").text == "And 5 more?"


def test_what_has_no_question_or_no_answer_gives_nothing(lines: Callable[..., Path]) -> None:
    chats = [
        {"messages": [{"role": "assistant", "content": "Hello"}]},
        {"messages": [USER]},
        {"messages": [USER, {"role": "assistant", "content": "", "tool_calls": []}]},
    ]
    assert list(read_chats(lines(*chats))) == []


@pytest.mark.parametrize(
    "bad",
    [
        "{",
        "[]",
        '{"messages": 3}',
        '{"messages": [{"content": "x"}]}',
        '{"x": 1}',
        '{"conversations": [{"from": "human"}]}',
        '{"conversations": [{"from": [], "value": "x"}]}',
    ],
)
def test_a_line_that_is_no_chat_is_named(bad: str, lines: Callable[..., Path]) -> None:
    with pytest.raises(DataCorruptError, match="line 1"):
        list(read_chats(lines(bad)))
