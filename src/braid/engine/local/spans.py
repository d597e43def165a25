"""All that one session has in the cache: its spans by name, and the layout that places them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from braid.cache import KVCache, PageGroup
from braid.engine.backend import PREAMBLE, closer_of
from braid.engine.local.layout import Layout, RowLayout, ViewLayout
from braid.engine.local.span import Span, new_span
from braid.streams.lanes import LaneTable
from braid.streams.topology import Topology

__all__ = ["SessionSpans"]


class SessionSpans:
    """The spans of one session.

    Args:
        cache: What remembers.
        topology: Settled with the checkpoint.
        copies: Parallel copies of streams that allow them.
        namespace: Under which its closed prefixes are shared.

    Raises:
        UnsupportedByBackend: The topology asks for what this layout cannot do.
    """

    def __init__(
        self, cache: KVCache, topology: Topology, copies: Mapping[str, int], namespace: bytes
    ) -> None:
        self.topology = topology
        self.copies = dict(copies)
        self.namespace = namespace
        self.table: LaneTable = topology.lanes(copies)
        self.group = PageGroup()
        self.lanes: list[Span | None] = []
        """Of each lane, in the order of the table; None once the lane is closed."""
        self.named: dict[str, Span] = {}
        self._cache = cache
        self.stashed: dict[str, Span] = {}
        """What spans held when it was put aside."""
        for lane in self.table.lanes:
            span = new_span(cache, self.table.stream_index(lane.index), self.group)
            self.lanes.append(span)
            self.named[lane.label] = span
        try:
            self.layout: Layout = self._lay_out()
        except BaseException:
            self.release()
            raise

    def _lay_out(self) -> Layout:
        if self.topology.decoding != "views":
            return RowLayout(self.table, self.lanes)
        preamble = new_span(self._cache, 0, self.group)
        self.named[PREAMBLE] = preamble
        closers: dict[str, Span] = {}
        for lane in self.table.lanes:
            if self.table.spec(lane.index).is_output:
                span = new_span(self._cache, self.table.stream_index(lane.index), self.group)
                closers[lane.label] = self.named[closer_of(lane.label)] = span
        return ViewLayout(self.table, self.lanes, preamble, closers)

    def __iter__(self) -> Iterator[Span]:
        return iter(self.named.values())

    def __len__(self) -> int:
        """Tokens that the cache keeps for this session."""
        return sum(len(span) for span in self.named.values())

    def number(self, name: str) -> int:
        """Which list of a shared prefix a span is: the lane's place, and the preamble behind all lanes."""
        return len(self.table) if name == PREAMBLE else self.table.index(name)

    def close_lane(self, label: str) -> None:
        """Free what a lane holds; later rows do not read it. Harmless when repeated."""
        index = self.table.index(label)
        span = self.lanes[index]
        if span is None:
            return
        self.lanes[index] = None
        span.release()
        del self.named[label]
        closer = self.named.get(closer_of(label))
        if closer is not None:
            closer.trim(0)

    def stash(self, name: str | None) -> None:
        """Put aside what a span holds, its pages shared until it is written to; with None, let go of all that was."""
        for old in [self.stashed.pop(name, None)] if name is not None else self._unstashed():
            if old is not None:
                old.release()
        if name is not None:
            self.stashed[name] = new_span(self._cache, self.named[name].stream, self.group)
            self.stashed[name].become(self.named[name], self.group)

    def _unstashed(self) -> list[Span]:
        stashed = list(self.stashed.values())
        self.stashed.clear()
        return stashed

    def drop(self) -> None:
        """Free everything; the lanes are as they were at the beginning, and closed ones open again.

        Whoever fills the spans again from the transcript reads what was open then, and closes it where it was closed.
        """
        for lane in self.table.lanes:
            if self.lanes[lane.index] is None:
                span = new_span(self._cache, self.table.stream_index(lane.index), self.group)
                self.lanes[lane.index] = self.named[lane.label] = span
        self.stash(None)
        for span in self.named.values():
            span.trim(0)
            span.base = 0

    def fork(self) -> SessionSpans:
        """A second session that holds the same; the pages are shared until one of the two writes."""
        twin = SessionSpans(self._cache, self.topology, self.copies, self.namespace)
        for label in [label for label in twin.named if label not in self.named]:
            twin.close_lane(label)
        for name, span in self.named.items():
            twin.named[name].become(span, twin.group)
        return twin

    def release(self) -> None:
        """Give all pages back."""
        self.stash(None)
        for span in self.named.values():
            span.release()
        self.named.clear()
        self.lanes[:] = [None] * len(self.lanes)
