from __future__ import annotations

from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from braid.errors import ForbiddenFlowError
from braid.streams.influence import Flow, flow_path, flows, influences
from braid.streams.topology import Topology
from tests.properties import examples
from tests.streams.strategies import UNHURRIED, topologies

INPUT = {"direction": "input"}
OUTPUT = {"direction": "output"}


def closure_by_matrix(topology: Topology) -> dict[str, frozenset[str]]:
    """The closure written out from the rules, by Warshall's algorithm, sharing no code with the module."""
    names = list(topology.streams)
    reach = {a: {b: a == b for b in names} for a in names}
    for sink, spec in topology.streams.items():
        if sink in topology.reads:
            read = set(topology.reads[sink])
        else:
            read = {
                name
                for name in names
                if spec.direction == "output" or topology.streams[name].direction == "input"
            }
        sources = read | set(spec.held_by)
        if spec.trigger != "always":
            sources.add(spec.trigger.on)
        for source in sources:
            reach[source][sink] = True
        if topology.decoding == "views":
            for source, other in topology.streams.items():
                if other.direction == "input" or other.visibility == "external":
                    reach[source][sink] = True
    declared = topology.tool_flows
    if declared is None and {"tool_call", "tool_result"} <= set(names):
        is_usual = (topology.streams["tool_call"].direction, topology.streams["tool_result"].direction)
        declared = (("tool_call", "tool_result"),) if is_usual == ("output", "input") else ()
    for call, result in declared or ():
        reach[call][result] = True
    for middle in names:
        for a in names:
            for b in names:
                reach[a][b] = reach[a][b] or (reach[a][middle] and reach[middle][b])
    return {sink: frozenset(source for source in names if reach[source][sink]) for sink in names}


@settings(UNHURRIED, max_examples=examples(75))
@given(topologies())
def test_closure_equals_brute_force(topology: Topology):
    assert influences(topology) == closure_by_matrix(topology)


@settings(UNHURRIED, max_examples=examples(30))
@given(topologies())
def test_paths_exist_exactly_where_the_closure_says_so_and_are_shortest(topology: Topology):
    closure = influences(topology)
    hops = flows(topology)
    for source in topology.streams:
        reached, distance = {source}, {source: 0}
        for steps in range(1, len(topology.streams) + 1):
            reached |= {flow.sink for flow in hops if flow.source in reached}
            for name in reached:
                distance.setdefault(name, steps)
        for sink in topology.streams:
            path = flow_path(topology, source, sink)
            assert (path is not None) == (source in closure[sink])
            if path is not None:
                assert len(path) == distance[sink]
                assert [flow.source for flow in path] == [source, *(flow.sink for flow in path)][:-1]
                assert set(path) <= set(hops)


@settings(UNHURRIED, max_examples=examples(40))
@given(topologies(), st.data())
def test_forbid_refuses_exactly_what_the_closure_allows(topology: Topology, data: st.DataObject):
    names = list(topology.streams)
    source, sink = data.draw(st.sampled_from([(a, b) for a in names for b in names if a != b]))
    rule = {"forbid": ((source, sink),)}
    if source in closure_by_matrix(topology)[sink]:
        with pytest.raises(ForbiddenFlowError) as caught:
            topology.model_copy(update=rule)
        assert caught.value.path[0] == source
        assert caught.value.path[-1] == sink
        assert f"{source} → " in str(caught.value)
    else:
        assert topology.model_copy(update=rule).forbid == rule["forbid"]


@settings(UNHURRIED, max_examples=examples(30))
@given(topologies(decoding="rows"), st.data())
def test_more_reading_never_means_less_influence(topology: Topology, data: st.DataObject):
    assume(topology.reads)
    reader = data.draw(st.sampled_from(sorted(topology.reads)))
    read = data.draw(st.sampled_from(list(topology.streams)))
    wider = dict(topology.reads) | {reader: (*(r for r in topology.reads[reader] if r != read), read)}
    before = influences(topology)
    after = influences(topology.model_copy(update={"reads": wider, "forbid": ()}))
    assert all(before[name] <= after[name] for name in topology.streams)


def refused(data: dict[str, Any]) -> ForbiddenFlowError:
    with pytest.raises(ForbiddenFlowError) as caught:
        Topology.from_dict(data)
    return caught.value


STREAMS: dict[str, Any] = {"document": INPUT, "thought": OUTPUT, "tool_call": OUTPUT}
ALONE: dict[str, list[str]] = {"document": [], "thought": [], "tool_call": []}


def test_a_flow_through_a_third_stream_is_named_hop_by_hop():
    error = refused(
        {
            "streams": STREAMS,
            "reads": ALONE | {"thought": ["document"], "tool_call": ["thought"]},
            "forbid": [["document", "tool_call"]],
        }
    )
    assert error.path == ("document", "thought", "tool_call")
    assert "document → thought (thought reads document) → tool_call (tool_call reads thought)" in str(error)


def test_the_shortest_path_is_named():
    error = refused({"streams": STREAMS, "forbid": [["document", "tool_call"]]})
    assert error.path == ("document", "tool_call")


def test_a_trigger_is_a_flow():
    streams = STREAMS | {"tool_call": OUTPUT | {"trigger": {"on": "document"}}}
    error = refused({"streams": streams, "reads": ALONE, "forbid": [["document", "tool_call"]]})
    assert "document triggers tool_call" in str(error)


def test_a_hold_is_a_flow():
    streams = STREAMS | {"tool_call": OUTPUT | {"held_by": ["thought"]}}
    reads = ALONE | {"thought": ["document"]}
    error = refused({"streams": streams, "reads": reads, "forbid": [["document", "tool_call"]]})
    assert error.path == ("document", "thought", "tool_call")
    assert "thought may hold tool_call" in str(error)


def test_a_tool_flow_is_a_flow_inferred_or_declared():
    streams = {"secret": INPUT, "tool_result": INPUT, "tool_call": OUTPUT, "output": OUTPUT}
    reads = {"secret": [], "tool_result": [], "tool_call": ["secret"], "output": ["tool_result"]}
    forbid = [["secret", "output"]]
    error = refused({"streams": streams, "reads": reads, "forbid": forbid})
    assert error.path == ("secret", "tool_call", "tool_result", "output")
    assert "what tool_call asks for comes back in tool_result" in str(error)
    assert Topology.from_dict({"streams": streams, "reads": reads, "forbid": forbid, "tool_flows": []})


def test_an_adaptive_wait_is_a_flow_and_a_fixed_one_is_not():
    def kinds(wait: Any) -> list[Flow]:
        streams = {"user": INPUT, "output": OUTPUT | {"wait_k": wait}}
        found = flows(Topology.from_dict({"streams": streams}))
        return [flow for flow in found if flow.kind == "adaptive wait_k"]

    assert [(flow.source, flow.sink) for flow in kinds("adaptive")] == [("user", "output")]
    assert kinds(3) == kinds("end") == kinds(None) == []


def test_views_tell_the_history_to_all():
    streams = {"document": INPUT, "thought": OUTPUT | {"visibility": "internal"}, "output": OUTPUT}
    reads = {"document": [], "thought": ["document"], "output": []}
    data: dict[str, Any] = {"streams": streams, "reads": reads, "forbid": [["document", "output"]]}
    assert Topology.from_dict(data)
    assert "history" in str(refused(data | {"decoding": "views"}))
    # What is internal is not retold.
    assert Topology.from_dict(data | {"decoding": "views", "forbid": [["thought", "output"]]})


def test_inputs_are_blind_to_outputs_by_default():
    topology = Topology.from_dict({"streams": {"user": INPUT, "document": INPUT, "output": OUTPUT}})
    assert influences(topology)["user"] == {"user", "document"}
    assert influences(topology)["output"] == {"user", "document", "output"}


def test_no_way_is_none_and_the_way_to_oneself_is_empty():
    topology = Topology.from_dict({"streams": STREAMS, "reads": ALONE})
    assert flow_path(topology, "document", "thought") is None
    assert flow_path(topology, "document", "document") == ()
