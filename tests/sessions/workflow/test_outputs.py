"""The memory of outputs: by content, within bounds."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from braid.sessions.workflow.outputs import Asked, Memory, Output

VALUES = st.none() | st.booleans() | st.integers() | st.text() | st.binary() | st.lists(st.integers())


@given(st.lists(VALUES, max_size=3), st.lists(VALUES, max_size=3))
def test_only_what_is_asked_equally_is_the_same(one: list[Any], other: list[Any]) -> None:
    a, b = (Asked({str(n): value for n, value in enumerate(values)}) for values in (one, other))
    if a.key == b.key:
        assert one == other
        assert list(map(type, one)) == list(map(type, other))
    assert a.key == Asked(a.values).key


@pytest.mark.parametrize(("one", "other"), [(1, True), (1, 1.0), ((1,), [1]), ({1: 2}, {"1": 2}), ("1", 1)])
def test_equal_is_not_the_same(one: Any, other: Any) -> None:
    assert Asked({"x": one}).key != Asked({"x": other}).key


def test_what_has_no_content_is_not_remembered() -> None:
    memory, value = Memory(), lambda: None
    asked = Asked({"x": value, "y": 3})
    assert asked.key == Asked({"x": value, "y": 3}).key
    assert asked.key != Asked({"x": lambda: None, "y": 3}).key
    memory.put("stage", asked, Output(1))
    assert memory.get("stage", asked) is None


def test_the_memory_is_bounded() -> None:
    memory = Memory(most=3, most_bytes=100)

    def asked(number: int) -> Asked:
        return Asked({}, str(number))

    for number in range(4):
        memory.put("stage", asked(number), Output("x" * number))
        assert memory.get("stage", asked(1)) is not None or number == 0
    assert memory.get("stage", asked(0)) is None
    assert memory.get("other", asked(1)) is None
    for number in range(4, 8):
        memory.put("stage", asked(number), Output("x" * 40))
    assert (len(memory), memory.num_bytes) == (2, 82)
    memory.put("stage", asked(7), Output("x"))
    assert memory.num_bytes == 43
    memory.put("stage", asked(9), Output("x" * 200))
    assert memory.get("stage", asked(9)) is None
    memory.put("stage", asked(10), Output(lambda: None))
    assert memory.num_bytes <= 100
