"""One field of JSON, found while the text grows."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from braid.sessions.workflow.fields import ABSENT, FieldReader, field_of

KEYS = st.sampled_from(["a", "b", "city", '"', "\\", "ü", "0", ""])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=12,
)


def paths_of(value: Any, path: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], Any]]:
    """Every path into a value, and what stands there."""
    items: list[tuple[str, Any]] = []
    if isinstance(value, dict):
        items = list(value.items())
    elif isinstance(value, list):
        items = [(str(index), inner) for index, inner in enumerate(value)]
    found = [(path, value)] if path else []
    return found + [pair for key, inner in items for pair in paths_of(inner, (*path, key))]


@given(
    st.dictionaries(KEYS.filter(lambda key: not key.isdigit()), VALUES, max_size=4),
    st.sampled_from(["", "Sure, here it is:\n```json\n", "[1] "]),
    st.sampled_from([None, 2]),
    st.data(),
)
def test_what_is_found_early_is_what_is_there_in_the_end(
    value: dict[str, Any], before: str, indent: int | None, data: st.DataObject
) -> None:
    text = before + json.dumps(value, indent=indent, ensure_ascii=False) + "\n``` {}"
    for path, expected in paths_of(value):
        reader = FieldReader(path)
        seen = [reader.read(text[:end]) for end in range(len(text) + 1)]
        assert seen[-1] == expected
        assert all(each is ABSENT or each == expected for each in seen)
        cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=3)))
        again = FieldReader(path)
        assert [again.read(text[:end]) for end in (*cuts, len(text))][-1] == expected
        assert field_of(text, path) == expected


@given(
    st.text(alphabet='{}[]",:\\ a1tn', max_size=30), st.sampled_from([("a",), ("a", "1"), ("1",), ("1", "a")])
)
def test_whatever_a_model_writes_is_read(text: str, path: tuple[str, ...]) -> None:
    reader = FieldReader(path)
    first = next((f for end in range(len(text) + 1) if (f := reader.read(text[:end])) is not ABSENT), ABSENT)
    assert field_of(text, path) == first


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('{"city": "Par', ABSENT),
        ('{"city": "Paris"', "Paris"),
        ('{"city": 12', ABSENT),
        ('{"city": 12,', 12),
        ('{"plan": {"city": "Rome"}, "city": [1, {"a": 2}]', [1, {"a": 2}]),
        ('{"city": "a", "city": "b"}', "a"),
        ('{"city": nonsense}', ABSENT),
        ('"city": "Paris"', ABSENT),
    ],
)
def test_a_field_is_there_once_it_cannot_change(text: str, found: Any) -> None:
    assert FieldReader(["city"]).read(text) == found


def test_fields_of_what_functions_return() -> None:
    assert field_of({"a": [1, {"b": 2}]}, ("a", "1", "b")) == 2
    assert field_of({"a": [1]}, ("a", "1")) is ABSENT
    assert field_of(3, ("a",)) is ABSENT
    assert field_of("text", ()) == "text"
