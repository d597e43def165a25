"""Who may influence whom: the transitive closure of a topology's flows of content.

`reads` is direct, but what a stream says depends on all that it read, so that content also travels through
third streams. The closure covers content. *When* a stream speaks is public: a fixed `wait_k`, `wait_k: end`
and the row clock are no flows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from braid.errors import ForbiddenFlowError
from braid.streams.stream_spec import AdaptiveWait, Trigger

if TYPE_CHECKING:
    from braid.streams.topology import Topology

__all__ = ["Flow", "FlowKind", "flow_path", "flows", "influences", "refuse_forbidden_flows"]

FlowKind = Literal["reads", "trigger", "adaptive wait_k", "hold", "tool flow", "history"]


@dataclass(frozen=True, slots=True)
class Flow:
    """Content of `source` may change what `sink` says, in one hop.

    Args:
        source: the stream that influences.
        sink: the stream that is influenced.
        kind: by what means.
        reason: the hop in words, such as `thought reads document`.
    """

    source: str
    sink: str
    kind: FlowKind
    reason: str


def flows(topology: Topology) -> tuple[Flow, ...]:
    """All single hops of a topology, reads first; two streams may be joined by several."""
    found = [flow for reader in topology.streams for flow in _flows_into(topology, reader)]
    found += [
        Flow(call, result, "tool flow", f"what {call} asks for comes back in {result}")
        for call, result in topology.resolved_tool_flows
    ]
    found += _history_flows(topology)
    return tuple(sorted(found, key=lambda flow: flow.kind != "reads"))


def flow_path(topology: Topology, source: str, sink: str) -> tuple[Flow, ...] | None:
    """The shortest way from one stream to another.

    Returns:
        The hops in order; None where no content can get there. A stream reaches itself in no hops.
    """
    hops = flows(topology)
    came_by: dict[str, Flow | None] = {source: None}
    queue = deque([source])
    while queue and sink not in came_by:
        here = queue.popleft()
        for flow in hops:
            if flow.source == here and flow.sink not in came_by:
                came_by[flow.sink] = flow
                queue.append(flow.sink)
    if sink not in came_by:
        return None
    path: list[Flow] = []
    last = came_by[sink]
    while last is not None:
        path.append(last)
        last = came_by[last.source]
    return tuple(reversed(path))


def influences(topology: Topology) -> Mapping[str, frozenset[str]]:
    """For each stream, all streams that may influence it, itself among them.

    Whatever tokens a stream holds that is missing from `influences(topology)[name]`, `name` says the same.
    """
    sources = {name: {name} for name in topology.streams}
    hops = {(flow.source, flow.sink) for flow in flows(topology)}
    has_grown = True
    while has_grown:
        has_grown = False
        for source, sink in hops:
            if not sources[source] <= sources[sink]:
                sources[sink] |= sources[source]
                has_grown = True
    return {name: frozenset(found) for name, found in sources.items()}


def refuse_forbidden_flows(topology: Topology) -> None:
    """Check `forbid` against the closure.

    Raises:
        ForbiddenFlowError: a forbidden flow could happen; its `path` names the streams on the way.
    """
    for source, sink in topology.forbid:
        path = flow_path(topology, source, sink)
        if path is not None:
            way = " → ".join([source, *(f"{flow.sink} ({flow.reason})" for flow in path)])
            message = f"forbid [{source}, {sink}] cannot hold: {way}; cut one of these hops or drop the rule"
            raise ForbiddenFlowError(message, (source, *(flow.sink for flow in path)))


def _flows_into(topology: Topology, reader: str) -> list[Flow]:
    spec = topology.streams[reader]
    others = [name for name in topology.readable(reader) if name != reader]
    found = [Flow(name, reader, "reads", f"{reader} reads {name}") for name in others]
    if isinstance(spec.trigger, Trigger):
        found.append(Flow(spec.trigger.on, reader, "trigger", f"{spec.trigger.on} triggers {reader}"))
    if isinstance(spec.wait_k, AdaptiveWait):
        inputs = [name for name in others if topology.streams[name].is_input]
        found += [
            Flow(name, reader, "adaptive wait_k", f"{reader} waits for {name} adaptively") for name in inputs
        ]
    return found + [Flow(guard, reader, "hold", f"{guard} may hold {reader}") for guard in spec.held_by]


def _history_flows(topology: Topology) -> list[Flow]:
    """Between turns, views rewrite what was asked and answered as history that every stream reads."""
    if topology.decoding != "views":
        return []
    told = [name for name, spec in topology.streams.items() if spec.is_input or spec.visibility == "external"]
    return [
        Flow(source, sink, "history", f"the history of earlier turns, which {sink} reads, holds {source}")
        for source in told
        for sink in topology.streams
        if source != sink
    ]
