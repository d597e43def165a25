"""Calls found in text: however it is cut into pieces, the same content and the same calls."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from braid.server.openai.toolcalls import CallFilter, new_call_ids
from braid.sessions.tools.calls import Call

SEARCH = '{"name": "search", "arguments": {"query": "a {b} \\" c"}}'
TAGGED = f"<tool_call>\n{SEARCH}\n</tool_call>"
PIECES = (
    TAGGED,
    SEARCH,
    f"[{SEARCH}, {SEARCH}]",
    "Let me look. ",
    "\n\n",
    "<tool",
    "<tool_call>",
    "</tool_call>",
    '{"a": 1}',
    '{"name": "other", "arguments": {}}',
    "{this} [that], ",
    '{"name": "search", "arguments": {"a" 1}}',
    "é🙂",
    "<",
)


def read(text: str, cuts: tuple[int, ...] = ()) -> tuple[str, list[tuple[str, str]]]:
    parts = CallFilter("output", {"search"})
    edges = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    found: list[str | Call] = []
    for start, stop in itertools.pairwise(edges):
        found += parts.push(text[start:stop])
    found += parts.flush()
    content = "".join(part for part in found if isinstance(part, str))
    return content, [(part.name, part.source) for part in found if isinstance(part, Call)]


@given(st.lists(st.sampled_from(PIECES), max_size=8), st.lists(st.integers(0, 1000), max_size=12))
def test_whole_equals_chunked(pieces: list[str], cuts: list[int]) -> None:
    text = "".join(pieces)
    assert read(text, tuple(cuts)) == read(text) == read(text, tuple(range(len(text))))


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=60))
def test_text_without_calls_is_left_alone(text: str) -> None:
    content, calls = read(text)
    assert (content, calls) == (text, []) or '"search"' in text


@pytest.mark.parametrize(
    ("text", "content", "num_calls"),
    [
        (TAGGED, "", 1),
        (f"Let me look.\n{TAGGED}\n{TAGGED}", "Let me look.", 2),
        (f"{TAGGED} One moment.", " One moment.", 1),
        (f"[{SEARCH}, {SEARCH}]", "", 2),
        (f"<tool_call>{SEARCH}", "", 1),
        (f"<tool_call>{SEARCH}\n</tool_", "", 1),
        ('{"name": "other", "arguments": {}}', '{"name": "other", "arguments": {}}', 0),
        ('<tool_call>{"name": "other"}</tool_call>', '<tool_call>{"name": "other"}</tool_call>', 0),
        ("a < b, <tool", "a < b, <tool", 0),
        ('{"name": "search", "arguments', '{"name": "search", "arguments', 0),
    ],
)
def test_what_is_content_and_what_is_a_call(text: str, content: str, num_calls: int) -> None:
    said, calls = read(text)
    assert (said, len(calls)) == (content, num_calls)


def test_content_comes_at_once() -> None:
    parts = CallFilter("output", {"search"})
    assert parts.push("Let me look.") == ["Let me look."]
    assert parts.push(" <tool_call>" + SEARCH[:-1]) == []
    (call,) = parts.push("}")
    assert isinstance(call, Call)


def test_ids_differ() -> None:
    assert next(new_call_ids()) != next(new_call_ids())
