"""What a topology must agree on beyond the shape of its fields; each check says what would work."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from braid.errors import TopologyError
from braid.streams.stream_spec import Trigger
from braid.streams.strict import hint

if TYPE_CHECKING:
    from braid.streams.topology import Topology

__all__ = ["check_consistency"]

_RESERVED = ("preamble",)
"""Names of spans that are no streams, which transcripts speak of beside the streams."""


def check_consistency(topology: Topology) -> None:
    """Check all rules between the fields of a topology, but for `forbid`'s closure.

    Raises:
        TopologyError: one does not hold; the message names the place and what would work.
    """
    _check_streams(topology)
    _check_reads(topology)
    _check_patterns(topology)
    _check_pairs(topology)
    _check_triggers(topology)
    for name in topology.output_names:
        _check_output(topology, name)
    if topology.decoding == "views":
        _check_views(topology)
    else:
        _check_rows(topology)


def _known(topology: Topology, name: str, where: str) -> None:
    if name not in topology.streams:
        raise TopologyError(f"{where}: there is no stream {name!r}; {hint(name, topology.streams)}")


def _no_repeats(names: Iterable[str], where: str) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise TopologyError(f"{where}: {name!r} stands here twice; keep one")
        seen.add(name)


def _check_streams(topology: Topology) -> None:
    for name in _RESERVED:
        if name in topology.streams:
            raise TopologyError(f"streams.{name}: this name means a span of every session; take another")
    if not topology.output_names:
        raise TopologyError("streams: nothing can ever be said; add a stream with direction: output")


def _check_reads(topology: Topology) -> None:
    for reader, read in topology.reads.items():
        _known(topology, reader, "reads")
        for name in read:
            _known(topology, name, f"reads.{reader}")
        _no_repeats(read, f"reads.{reader}")


def _check_patterns(topology: Topology) -> None:
    for reader, patterns in topology.patterns.items():
        _known(topology, reader, "patterns")
        for read in patterns:
            where = f"patterns.{reader}"
            _known(topology, read, where)
            if not topology.reads_pair(reader, read):
                raise TopologyError(
                    f"{where}.{read}: {reader} does not read {read}, so no pattern can apply; "
                    f"add {read} to reads.{reader} or drop the pattern"
                )


def _check_pairs(topology: Topology) -> None:
    for at, (source, sink) in enumerate(topology.forbid):
        _known(topology, source, f"forbid[{at}]")
        _known(topology, sink, f"forbid[{at}]")
        if source == sink:
            raise TopologyError(f"forbid[{at}]: {source} always influences itself; name two streams")
    for at, (call, result) in enumerate(topology.tool_flows or ()):
        _known(topology, call, f"tool_flows[{at}]")
        _known(topology, result, f"tool_flows[{at}]")
        if not (topology.streams[call].is_output and topology.streams[result].is_input):
            directions = f"{call} is an {topology.streams[call].direction}, {result} an "
            raise TopologyError(
                f"tool_flows[{at}]: {directions}{topology.streams[result].direction}; "
                "name an output that calls, then the input that brings the result"
            )


def _check_triggers(topology: Topology) -> None:
    triggers = {name: spec.trigger for name, spec in topology.streams.items()}
    watched = {name: trigger.on for name, trigger in triggers.items() if isinstance(trigger, Trigger)}
    for name, on in watched.items():
        _known(topology, on, f"streams.{name}.trigger.on")
    for name in watched:
        chain = [name]
        while chain[-1] in watched and watched[chain[-1]] not in chain:
            chain.append(watched[chain[-1]])
        if watched.get(chain[-1]) == name:
            circle = " → ".join(reversed([*chain, name]))
            raise TopologyError(
                f"streams.{name}.trigger.on: none of {circle} could ever wake first; let one be `always`"
            )


def _check_output(topology: Topology, name: str) -> None:
    spec = topology.streams[name]
    for guard in spec.held_by:
        _known(topology, guard, f"streams.{name}.held_by")
        if guard == name:
            raise TopologyError(f"streams.{name}.held_by: {name} cannot guard itself; name another stream")
    _no_repeats(spec.held_by, f"streams.{name}.held_by")
    has_input = any(topology.streams[read].is_input for read in topology.readable(name))
    if spec.wait_k is not None and not has_input:
        raise TopologyError(
            f"streams.{name}.wait_k: {name} reads no input, so the wait would never end; "
            f"add an input to reads.{name} or leave wait_k out"
        )


def _check_views(topology: Topology) -> None:
    if not topology.input_names:
        raise TopologyError("decoding: views answer a user, so they need a stream with direction: input")
    if topology.silence == "kept":
        raise TopologyError("silence: stock models have none to keep; leave it out, or use decoding: rows")
    for reader in topology.input_names:
        for read in topology.readable(reader):
            if topology.streams[read].is_output:
                raise TopologyError(
                    f"reads.{reader}: in views inputs come before all outputs and cannot read {read}; "
                    "leave it out, or use decoding: rows"
                )


def _check_rows(topology: Topology) -> None:
    if topology.system is not None:
        raise TopologyError(
            "system: rows have no system prompt; write it to an input stream, or use decoding: views"
        )
    for name, spec in topology.streams.items():
        if spec.instructions is not None:
            raise TopologyError(
                f"streams.{name}.instructions: rows have no place for instructions; "
                "write them to an input stream, or use decoding: views"
            )
