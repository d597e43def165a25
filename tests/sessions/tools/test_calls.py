"""Calls in text: whole equals chunked, each comes with its closing brace, and nothing broken is ever run."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from braid.sessions.tools import calls
from braid.sessions.tools.calls import Call, CallParser, call_ids

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.sampled_from(
    ["}", "{", '"', "\\", '\\"', "</tool_call>", '{"name": "inner", "arguments": {}}', "naïve 😀 中文", "\n"]
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**6), 10**6) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
ARGUMENTS = st.dictionaries(TEXT, VALUES, max_size=3)
PROSE = st.text(st.characters(exclude_characters="{<", exclude_categories=["Cs"]), max_size=10) | st.just(
    "use {this} or { that }, a < b"
)


def spelled(name: str, arguments: dict[str, Any], is_ascii: bool, indent: int | None) -> str:
    return json.dumps({"name": name, "arguments": arguments}, ensure_ascii=is_ascii, indent=indent)


@st.composite
def lanes(draw: st.DrawFn) -> tuple[str, list[tuple[str, dict[str, Any]]], list[int]]:
    """A lane's text, the calls in it, and where each of them ends."""
    text, expected, ends = draw(PROSE), [], []
    for _ in range(draw(st.integers(0, 4))):
        batch = draw(
            st.lists(st.tuples(st.sampled_from(["a", "get_weather"]), ARGUMENTS), min_size=1, max_size=2)
        )
        opening, between, closing = draw(
            st.sampled_from([("", "\n", ""), ("<tool_call>\n", "\n", "\n</tool_call>"), ("[", ", ", "]")])
        )
        text += opening
        for number, (name, arguments) in enumerate(batch):
            text += between if number else ""
            text += spelled(name, arguments, draw(st.booleans()), draw(st.sampled_from([None, 2])))
            expected.append((name, arguments))
            ends.append(len(text))
        text += closing + draw(PROSE)
    return text, expected, ends


def whole(text: str) -> list[Call]:
    parser = CallParser("tool_call")
    return parser.push(text) + parser.flush()


def chunked(text: str, cuts: list[int]) -> list[Call]:
    parser = CallParser("tool_call")
    bounds = [0, *sorted(cut % (len(text) + 1) for cut in cuts), len(text)]
    found = [call for i, j in itertools.pairwise(bounds) for call in parser.push(text[i:j])]
    return found + parser.flush()


CUTS = st.lists(st.integers(0, 10_000), max_size=20)


@given(lanes(), CUTS)
def test_every_call_is_found_however_the_text_is_cut(
    lane: tuple[str, list[tuple[str, dict[str, Any]]], list[int]], cuts: list[int]
) -> None:
    text, expected, _ = lane
    found = whole(text)
    assert [(call.name, call.arguments) for call in found] == expected
    assert [call.id for call in found] == [f"call_{i + 1}" for i in range(len(expected))]
    assert all(call.error is None and call.lane == "tool_call" for call in found)
    assert chunked(text, cuts) == found
    assert chunked(text, list(range(len(text)))) == found


@settings(max_examples=50)
@given(lanes())
def test_a_call_comes_with_its_closing_brace_and_not_later(
    lane: tuple[str, list[tuple[str, dict[str, Any]]], list[int]],
) -> None:
    text, _, ends = lane
    parser = CallParser("tool_call")
    when = [at + 1 for at, character in enumerate(text) for _ in parser.push(character)]
    assert when == ends


WRECKAGE = st.lists(
    st.sampled_from(
        [
            *'{}[]"\\,: \n',
            "'",
            "a",
            "1",
            '{"',
            "<tool_call>",
            "</tool_call>",
            '{"name": "a", "arguments": {',
            "}}",
        ]
    ),
    max_size=30,
).map("".join)


@given(WRECKAGE, CUTS)
def test_wreckage_too_is_read_the_same_however_it_is_cut(text: str, cuts: list[int]) -> None:
    found = whole(text)
    assert chunked(text, cuts) == found
    for call in found:
        if call.error is None:
            assert json.loads(call.source)["name"] == call.name


@given(WRECKAGE)
def test_a_parser_recovers_from_anything_at_the_end_of_the_lane(text: str) -> None:
    parser = CallParser("tool_call")
    parser.push(text)
    parser.flush()
    assert [call.name for call in parser.push('{"name": "after"}')] == ["after"]


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ('{"name": "a", "arguments": {"q": 1}', "not finished"),
        ("then {", "not finished"),
        ('{"name": "a", "arguments": [1]}', "must be an object"),
        ('{"name": "a", "arguments": "q"}', "must be an object"),
        ('{"arguments": {}}', "needs the name"),
        ('{"name": 3}', "needs the name"),
        ('{"name": ""}', "needs the name"),
        ("{'name': 'a'}", "not JSON"),
        ('{"name": "a", }', "not JSON"),
        ('{"name": "a", "arguments": {"x": NaN}}', "NaN is no number"),
        ('{"name": "a", "arguments": {"x": ' + "1" * 5000 + "}}", "not JSON"),
        ('{"name": "a", "arguments": {"x": [1}}', "stands where"),
        ('{"name": "a", "arguments": {"code": "print("hi")"}}', "'h' follows a string at character 44"),
        ('{"name": "a", "arguments": ' + '{"x": ' * 200 + "1" + "}" * 201, "nested more than 100 deep"),
        ("<tool_call>get_weather('Paris')</tool_call>", "no JSON object between the tags"),
        ("<tool_call>{name: a}</tool_call>", "no JSON object between the tags"),
        ("<tool_call>get_weather", "no JSON object between the tags"),
        ("<tool_call>now()<tool_call>", "no JSON object between the tags"),
    ],
)
def test_a_malformed_call_is_reported_once_with_its_reason(text: str, error: str) -> None:
    [call] = whole(text)
    assert call.error is not None and error in call.error
    assert call.source and call.source in text
    assert call.arguments == {}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no braces",
        "a {b} c",
        "{}",
        "{ {}",
        "[1, 2]",
        "</tool_call>",
        "<tool_call> \n</tool_call>",
    ],
)
def test_prose_is_no_call(text: str) -> None:
    assert whole(text) == []


def test_prose_with_braces_around_a_call() -> None:
    assert [call.name for call in whole('{{"name": "a"}} and {x} {\n\n "name": "b"}')] == ["a", "b"]


def test_parameters_and_missing_arguments_are_understood() -> None:
    found = whole('{"name": "a", "parameters": {"x": 1}} {"name": "b"} {"name": "c", "arguments": null}')
    assert [(call.name, call.arguments) for call in found] == [("a", {"x": 1}), ("b", {}), ("c", {})]


def test_line_breaks_in_strings_are_taken_as_they_are() -> None:
    [call] = whole('{"name": "run", "arguments": {"code": "a = 1\n\tb"}}')
    assert call.arguments == {"code": "a = 1\n\tb"}


def test_what_lies_in_a_broken_call_is_never_run_and_the_next_call_is() -> None:
    inner = '{\\"name\\": \\"delete\\", \\"arguments\\": {}}'
    text = (
        '{"name": "note", "arguments": {"text": "he said "'
        + inner.replace("\\", "")
        + '" to me"}} {"name": "b"}'
    )
    found = whole(text)
    assert [(call.name, call.error is None) for call in found] == [("", False), ("b", True)]


def test_after_a_missing_quotation_mark_a_tag_or_the_end_of_the_lane_helps() -> None:
    broken = '{"name": "a", "arguments": {"q": "tea}}'
    tagged = f"<tool_call>{broken}</tool_call>" + '<tool_call>{"name": "b"}</tool_call>' * 2
    assert [(call.name, call.error is None) for call in whole(tagged)] == [("", False), ("b", True)]
    parser = CallParser("tool_call")
    bare = broken + '\n{"name": "b", "arguments": {}}\n{"name": "c", "arguments": {}}'
    assert [call.error is None for call in parser.push(bare)] == [False]
    assert parser.flush() == []
    assert [call.name for call in parser.push('{"name": "d"}')] == ["d"]


def test_brackets_that_do_not_match_cost_one_call() -> None:
    found = whole('{"name": "a", "arguments": {"x": [1}} {"name": "b"}')
    assert [(call.name, call.error is None) for call in found] == [("", False), ("b", True)]


def test_the_end_of_the_lane_closes_a_tag_too() -> None:
    parser = CallParser("tool_call")
    assert [call.error is None for call in parser.push("<tool_call>now()") + parser.flush()] == [False]
    for tag in ("", "<tool_call>"):
        assert parser.push(tag) + parser.flush() == []
        assert parser.push("thinking") + parser.flush() == []


def test_a_break_is_reported_at_once() -> None:
    parser = CallParser("tool_call")
    assert [call.error is None for call in parser.push('{"name": "a" o')] == [False]
    assert parser.push('ops, "arguments": {}}') == []
    assert parser.flush() == []


def test_an_object_that_never_ends_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "MAX_CALL_CHARS", 50)
    parser = CallParser("tool_call")
    found = parser.push('{"name": "a", "arguments": {"x": "' + "y" * 200 + '"}} {"name": "b"}')
    assert [(call.name, call.error is None) for call in found] == [("", False), ("b", True)]
    assert len(found[0].source) == 51


def test_lanes_of_a_session_share_their_ids() -> None:
    ids = call_ids()
    first, second = CallParser("tool_call", ids), CallParser("tool_call#1", ids)
    found = first.push('{"name": "a"}') + second.push('{"name": "b"}') + first.push('{"name": "c"}')
    assert [(call.id, call.lane) for call in found] == [
        ("call_1", "tool_call"),
        ("call_2", "tool_call#1"),
        ("call_3", "tool_call"),
    ]
