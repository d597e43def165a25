from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from braid.errors import InputError, UnknownStreamError
from braid.streams.patterns import Dense, Window
from braid.streams.topology import Topology
from tests.streams.strategies import UNHURRIED, topologies


def build(**fields: Any) -> Topology:
    streams = {
        "user": {"direction": "input"},
        "thought": {"direction": "output", "max_streams": 3},
        "output": {"direction": "output"},
    }
    return Topology.from_dict({"streams": streams} | fields)


def test_lanes_are_ordered_by_stream_then_copy():
    table = build().lanes({"thought": 3})
    assert [lane.label for lane in table.lanes] == ["user", "thought", "thought#1", "thought#2", "output"]
    assert [lane.index for lane in table.lanes] == [0, 1, 2, 3, 4]
    assert [lane.copy for lane in table.lanes] == [0, 0, 1, 2, 0]
    assert [table.stream_index(i) for i in range(len(table))] == [0, 1, 1, 1, 2]
    assert table.spec(2) is table.topology.streams["thought"]
    assert [table.index(lane.label) for lane in table.lanes] == [0, 1, 2, 3, 4]


def test_one_copy_unless_said_otherwise():
    assert [lane.label for lane in build().lanes().lanes] == ["user", "thought", "output"]
    assert build().lanes({}) == build().lanes(None) == build().lanes({"thought": 1})


def test_copies_do_not_read_each_other_by_default():
    table = build().lanes({"thought": 2})
    assert table.reads(1, 1)
    assert table.reads(2, 2)
    assert not table.reads(1, 2)
    assert not table.reads(2, 1)
    assert table.reads(1, 0)
    assert table.reads(1, 3)  # an unnamed output reads all other streams
    assert table.reads(3, 2)
    assert not table.reads(0, 1)


def test_copies_read_each_other_where_it_is_stated():
    table = build(reads={"thought": ["thought"]}).lanes({"thought": 2})
    assert table.reads(1, 2)
    assert table.reads(2, 1)
    assert not table.reads(1, 0)
    assert table.sees_same_row(2, 1)
    assert not table.sees_same_row(1, 2)


def test_copies_that_are_named_without_themselves_stay_apart():
    table = build(reads={"thought": ["user"]}).lanes({"thought": 2})
    assert not table.reads(2, 1)
    assert table.reads(2, 2)


def test_patterns_follow_the_stream():
    table = build(patterns={"output": {"thought": "window(4)"}}).lanes({"thought": 2})
    assert table.pattern(3, 1) == table.pattern(3, 2) == Window(4)
    assert table.pattern(1, 0) == Dense()


@settings(UNHURRIED, max_examples=40)
@given(topologies(), st.data())
def test_same_row_rule(topology: Topology, data: st.DataObject):
    copies = {
        name: data.draw(st.integers(1, min(spec.max_streams, 3)), label=name)
        for name, spec in topology.streams.items()
    }
    table = topology.lanes(copies)
    assert len(table) == sum(copies.values())
    for i in range(len(table)):
        assert table.sees_same_row(i, i)
        assert table.reads(i, i)
        for j in range(len(table)):
            a, b = table.lanes[i], table.lanes[j]
            if a.stream != b.stream:
                assert table.reads(i, j) == topology.reads_pair(a.stream, b.stream)
            elif i != j:
                assert table.reads(i, j) == (a.stream in topology.reads.get(a.stream, ()))
            if i != j:
                expected = topology.same_row == "earlier" and j < i and table.reads(i, j)
                assert table.sees_same_row(i, j) == expected


def test_unknown_labels_name_the_nearest():
    table = build().lanes({"thought": 2})
    for label, near in (("thougt", "thought"), ("thought#2", "thought#1"), ("thought#0", "thought#1")):
        with pytest.raises(UnknownStreamError, match=f"did you mean '{near}'"):
            table.index(label)


@pytest.mark.parametrize("count", [0, 4, -1])
def test_copies_are_bounded(count: int):
    with pytest.raises(InputError, match="1 to 3"):
        build().lanes({"thought": count})


def test_copies_of_unknown_streams_and_of_inputs():
    with pytest.raises(UnknownStreamError, match="did you mean 'thought'"):
        build().lanes({"thougt": 1})
    with pytest.raises(InputError):
        build().lanes({"user": 2})
