"""Who is on stage in a session: its lanes, their spans, and the layout that places them."""

from __future__ import annotations

from collections.abc import Mapping

from braid.cache import KVCache, PageGroup
from braid.engine.lanes import InputLane, OutputLane
from braid.engine.layout import Layout, RowLayout, ViewLayout
from braid.engine.preamble import Preamble
from braid.engine.span import Span, new_span
from braid.engine.starts import require_supported
from braid.errors import DirectionError, StreamClosedError
from braid.model.checkpoint import reconcile
from braid.model.model import Model
from braid.streams.lanes import LaneTable
from braid.streams.topology import Topology

__all__ = ["Stage"]


class Stage:
    """The lanes of one session, and everything of theirs that lies in the cache.

    Args:
        model, cache: What computes and what remembers.
        topology: The streams; what the checkpoint was trained with wins over it.
        copies: Parallel copies of streams that allow them.

    Raises:
        CheckpointConflictError: The topology contradicts the checkpoint.
        UnsupportedByBackend: The topology asks for what this engine cannot do.
        UnsupportedModelError: Views on a model whose positions cannot be shifted.
    """

    def __init__(
        self, model: Model, cache: KVCache, topology: Topology, copies: Mapping[str, int] | None
    ) -> None:
        if model.trained is not None:
            topology = reconcile(model.trained, topology)
        for name, spec in topology.streams.items():
            require_supported(name, spec)
        self.model = model
        self.cache = cache
        self.topology = topology
        self.table: LaneTable = topology.lanes(copies)
        self._group = PageGroup()
        self.keeps_silence = topology.silence == "kept"
        self.in_views = topology.decoding == "views"
        if self.in_views and len([i for i in range(len(self.table)) if self.table.spec(i).is_output]) > 1:
            model.architecture.require_shifts()
        self.inputs: list[InputLane] = []
        self.outputs: list[OutputLane] = []
        self.spans: list[Span | None] = []
        """Of each lane, in the order of the table; None once the lane is closed."""
        self.preamble: Preamble | None = None
        try:
            self._open_lanes()
            self.layout: Layout = self._lay_out()
        except BaseException:
            self.release()
            raise

    def _open_lanes(self) -> None:
        default_feed = "burst" if self.in_views else "paced"
        for lane in self.table.lanes:
            spec = self.table.spec(lane.index)
            span = new_span(self.cache, self.table.stream_index(lane.index), self._group)
            self.spans.append(span)
            if spec.is_input:
                feed = "paced" if self.keeps_silence else spec.feed or default_feed
                self.inputs.append(InputLane(lane, spec, span, self.model.codec, feed))
            else:
                closer = new_span(self.cache, span.stream, self._group) if self.in_views else None
                self.outputs.append(OutputLane(lane, spec, span, self.model.codec, closer))

    def _lay_out(self) -> Layout:
        if not self.in_views:
            return RowLayout(self.table, self.spans)
        self.preamble = Preamble(self.model.codec, self.topology.system, new_span(self.cache, 0, self._group))
        closers = {lane.label: lane.closer for lane in self.outputs if lane.closer is not None}
        return ViewLayout(self.table, self.spans, self.preamble.span, closers)

    @property
    def kv_tokens(self) -> int:
        """Tokens that the cache keeps for this session."""
        return sum(len(span) for span in self._all_spans())

    def input(self, stream: str) -> InputLane:
        """An open input by its label.

        Raises:
            UnknownStreamError, DirectionError, StreamClosedError
        """
        index = self.table.index(stream)
        for lane in self.inputs:
            if lane.lane.index == index:
                if lane.is_closed:
                    is_open = ", ".join(other.label for other in self.inputs if not other.is_closed)
                    raise StreamClosedError(f"{stream} is closed; open inputs: {is_open or 'none'}")
                return lane
        raise DirectionError(
            f"{stream} is an output, which the model speaks; inputs are {', '.join(self.topology.input_names)}. "
            "To put words into an output's mouth, use force(stream, text)"
        )

    def output(self, stream: str) -> OutputLane:
        """An open output by its label.

        Raises:
            UnknownStreamError, DirectionError, StreamClosedError
        """
        index = self.table.index(stream)
        for lane in self.outputs:
            if lane.lane.index == index:
                if lane.phase == "closed":
                    raise StreamClosedError(f"{stream} is closed; open a new session to hear it again")
                return lane
        raise DirectionError(
            f"{stream} is an input, which the model reads; outputs are {', '.join(self.topology.output_names)}"
        )

    def open_outputs(self) -> list[OutputLane]:
        """All outputs that are not closed."""
        return [lane for lane in self.outputs if lane.phase != "closed"]

    def close_lane(self, lane: InputLane | OutputLane) -> None:
        """Close a lane for good; its pages are free at once."""
        if isinstance(lane, OutputLane):
            lane.phase = "closed"
            if lane.closer is not None:
                lane.closer.trim(0)
        else:
            lane.close()
        lane.span.release()
        self.spans[lane.lane.index] = None

    def clear_turn(self) -> None:
        """Forget the tokens of a turn that has become history; the preamble stays."""
        for span in self._all_spans():
            if self.preamble is None or span is not self.preamble.span:
                span.trim(0)

    def release(self) -> None:
        """Give all pages back."""
        for span in self._all_spans():
            span.release()
        self.spans[:] = [None] * len(self.spans)
        for lane in self.outputs:
            lane.closer = None
        self.preamble = None

    def _all_spans(self) -> list[Span]:
        spans = [*self.spans, *(lane.closer for lane in self.outputs)]
        spans += [self.preamble.span] if self.preamble is not None else []
        return [span for span in spans if span is not None]
