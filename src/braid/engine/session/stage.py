"""Who is on stage in a session: its lanes, and the template text around them."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy

from braid.engine.backend import ModelCard, closer_of
from braid.engine.session.lanes import InputLane, OutputLane
from braid.engine.session.preamble import Preamble
from braid.errors import DirectionError, StreamClosedError
from braid.model.chat import Chat
from braid.streams.lanes import LaneTable
from braid.streams.topology import Topology

__all__ = ["Stage"]


class Stage:
    """The lanes of one session.

    Args:
        model: What the tokens are for.
        topology: The streams, settled with the checkpoint.
        copies: Parallel copies of streams that allow them.
        chat: In views, the conversation that the first turn goes on with.
    """

    def __init__(
        self, model: ModelCard, topology: Topology, copies: Mapping[str, int] | None, chat: Chat | None = None
    ) -> None:
        self.model = model
        self.topology = topology
        self.table: LaneTable = topology.lanes(copies)
        self.keeps_silence = topology.silence == "kept"
        self.in_views = topology.decoding == "views"
        self.inputs: list[InputLane] = []
        self.outputs: list[OutputLane] = []
        self.preamble = Preamble(model.codec, topology.system, chat) if self.in_views else None
        default_feed = "burst" if self.in_views else "paced"
        for lane in self.table.lanes:
            spec = self.table.spec(lane.index)
            if spec.is_input:
                feed = "paced" if self.keeps_silence else spec.feed or default_feed
                self.inputs.append(InputLane(lane, spec, model.codec, feed))
            else:
                self.outputs.append(OutputLane(lane, spec, model.codec))
        self._reindex()

    def _reindex(self) -> None:
        self._by_label = {lane.label: lane for lane in (*self.inputs, *self.outputs)}

    @property
    def kv_tokens(self) -> int:
        """Tokens that the cache keeps for this session, when it holds all of it."""
        kept = sum(lane.num_kept for lane in self.inputs)
        kept += sum(lane.num_kept + lane.closer_len for lane in self.outputs)
        return kept + (self.preamble.num_cached if self.preamble is not None else 0)

    @property
    def is_speaking(self) -> bool:
        """Whether an output has a token for the next row."""
        return any(lane.phase == "speaking" for lane in self.outputs)

    def held_by_span(self) -> dict[str, int]:
        """Tokens of each span that is open."""
        held = {lane.label: lane.num_kept for lane in self.inputs if not lane.is_closed}
        for lane in self.open_outputs():
            held[lane.label], held[closer_of(lane.label)] = lane.num_kept, lane.closer_len
        return held

    def lane(self, label: str) -> InputLane | OutputLane:
        """Any lane by its label, closed or not.

        Raises:
            UnknownStreamError
        """
        self.table.index(label)
        return self._by_label[label]

    def input(self, stream: str) -> InputLane:
        """An open input by its label.

        Raises:
            UnknownStreamError, DirectionError, StreamClosedError
        """
        lane = self.lane(stream)
        if isinstance(lane, OutputLane):
            raise DirectionError(
                f"{stream} is an output, which the model speaks; inputs are "
                f"{', '.join(self.topology.input_names)}. To put words into an output's mouth, use force(stream, text)"
            )
        if lane.is_closed:
            is_open = ", ".join(other.label for other in self.inputs if not other.is_closed)
            raise StreamClosedError(f"{stream} is closed; open inputs: {is_open or 'none'}")
        return lane

    def output(self, stream: str) -> OutputLane:
        """An open output by its label.

        Raises:
            UnknownStreamError, DirectionError, StreamClosedError
        """
        lane = self.lane(stream)
        if isinstance(lane, InputLane):
            raise DirectionError(
                f"{stream} is an input, which the model reads; outputs are {', '.join(self.topology.output_names)}"
            )
        if lane.phase == "closed":
            raise StreamClosedError(f"{stream} is closed; open a new session to hear it again")
        return lane

    def open_outputs(self) -> list[OutputLane]:
        """All outputs that are not closed."""
        return [lane for lane in self.outputs if lane.phase != "closed"]

    def close_lane(self, lane: InputLane | OutputLane) -> None:
        """Close a lane for good."""
        if isinstance(lane, OutputLane):
            lane.phase = "closed"
            lane.num_kept = lane.closer_len = 0
        else:
            lane.close()

    def clear_turn(self) -> None:
        """Forget the tokens of a turn that has become history; the preamble stays."""
        for lane in self.inputs:
            lane.num_kept = 0
        for lane in self.outputs:
            lane.num_kept = lane.closer_len = 0

    def fork(self) -> Stage:
        """A second stage that goes on by itself."""
        twin = copy(self)
        twin.inputs = [lane.fork() for lane in self.inputs]
        twin.outputs = [lane.fork() for lane in self.outputs]
        twin.preamble = None if self.preamble is None else self.preamble.fork()
        twin._reindex()  # noqa: SLF001 (of its own class)
        return twin
