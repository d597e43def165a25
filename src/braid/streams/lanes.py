"""Lanes: the streams of a topology once each copy is counted, in the order that rows have."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from braid.errors import InputError, UnknownStreamError
from braid.streams.patterns import Pattern
from braid.streams.stream_spec import StreamSpec
from braid.streams.strict import hint

if TYPE_CHECKING:
    from braid.streams.topology import Topology

__all__ = ["Lane", "LaneTable"]


@dataclass(frozen=True, slots=True)
class Lane:
    """One copy of one stream.

    Args:
        stream: the name of the stream.
        copy: 0 for the first copy.
        index: place in the row, counted over all lanes.
    """

    stream: str
    copy: int
    index: int

    @property
    def label(self) -> str:
        """The stream's name for the first copy, then `thought#1`, `thought#2` and so on."""
        return f"{self.stream}#{self.copy}" if self.copy else self.stream


@dataclass(frozen=True)
class LaneTable:
    """All lanes of a session, ordered by (stream, copy), and who of them reads whom.

    Args:
        topology: where the rules come from.
        lanes: ordered; `lanes[i].index == i`.
    """

    topology: Topology
    lanes: tuple[Lane, ...]

    @classmethod
    def of(cls, topology: Topology, copies: Mapping[str, int] | None = None) -> LaneTable:
        """The lanes of a topology.

        Args:
            topology: the streams and their order.
            copies: how many copies of a stream there are; one where it says nothing.

        Raises:
            UnknownStreamError: `copies` names a stream that the topology lacks.
            InputError: a number of copies is below 1 or above the stream's `max_streams`.
        """
        wanted = dict(copies or {})
        for name, count in wanted.items():
            spec = topology.stream(name)
            if not 1 <= count <= spec.max_streams:
                raise InputError(
                    f"{count} copies of {name!r}: its max_streams allows 1 to {spec.max_streams}"
                )
        pairs = [(name, copy) for name in topology.streams for copy in range(wanted.get(name, 1))]
        return cls(topology, tuple(Lane(name, copy, index) for index, (name, copy) in enumerate(pairs)))

    def __len__(self) -> int:
        return len(self.lanes)

    def spec(self, i: int) -> StreamSpec:
        """The settings of lane `i`'s stream."""
        return self.topology.streams[self.lanes[i].stream]

    def stream_index(self, i: int) -> int:
        """The place `h` of lane `i`'s stream in the topology; copies share it, and with it `s[h]`."""
        return self._stream_indices[i]

    def reads(self, i: int, j: int) -> bool:
        """Whether lane `i` reads lane `j`: always itself, its other copies only where `reads` says so."""
        return self._reads[i][j]

    def pattern(self, i: int, j: int) -> Pattern:
        """Which rows of lane `j` lane `i` sees, given that it reads it."""
        return self.topology.pattern(self.lanes[i].stream, self.lanes[j].stream)

    def sees_same_row(self, i: int, j: int) -> bool:
        """Whether lane `i` sees lane `j`'s token of its own row, given that the pattern allows distance 0."""
        return i == j or (self.topology.same_row == "earlier" and j < i and self.reads(i, j))

    def ordered(self, labels: Iterable[str]) -> list[str]:
        """Labels of lanes in the order that rows have."""
        return sorted(labels, key=self._by_label.__getitem__)

    def index(self, label: str) -> int:
        """The lane with this label.

        Raises:
            UnknownStreamError: no lane has it; the message names the nearest.
        """
        if label not in self._by_label:
            raise UnknownStreamError(f"there is no stream {label!r}; {hint(label, self._by_label)}")
        return self._by_label[label]

    @cached_property
    def _by_label(self) -> dict[str, int]:
        return {lane.label: lane.index for lane in self.lanes}

    @cached_property
    def _stream_indices(self) -> tuple[int, ...]:
        order = {name: h for h, name in enumerate(self.topology.streams)}
        return tuple(order[lane.stream] for lane in self.lanes)

    @cached_property
    def _reads(self) -> tuple[tuple[bool, ...], ...]:
        return tuple(tuple(self._may_read(reader, read) for read in self.lanes) for reader in self.lanes)

    def _may_read(self, reader: Lane, read: Lane) -> bool:
        if reader.stream == read.stream:
            return reader.copy == read.copy or reader.stream in self.topology.reads.get(reader.stream, ())
        return self.topology.reads_pair(reader.stream, read.stream)
