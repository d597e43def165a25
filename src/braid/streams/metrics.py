"""Figures of a transcript: how long an answer waits, and how long the critical path is.

Defined on rows, so that they do not depend on the machine:

- **TNFT**: decode steps between the last input token and the first answer token of a turn. Counted in rows that lie
  strictly between the two, so it is 0 if the answer starts in the row after the last input token, which is as early as
  the model can know all of the input, or before that. A model that thinks first has as many as it has thoughts.
- **MSL**: tokens in the longest lane, the length of the critical path.

The *answer* is what the model chooses to say in an output stream that clients can see; tokens that were forced there
(headers, prefixes) are not chosen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from braid.streams.entries import Row
from braid.streams.topology import Topology
from braid.streams.transcript import Transcript

__all__ = ["Metrics", "TurnMetrics", "measure"]


@dataclass(frozen=True, slots=True)
class TurnMetrics:
    """Figures of one turn.

    Args:
        first_t: its first row.
        rows: how many rows it has.
        last_input_t: row of its last input token; None if there is none.
        first_answer_t: row of its first answer token; None if there is none.
        tnft: rows strictly between them, 0 if the answer comes first; None without input or without an answer.
    """

    first_t: int
    rows: int
    last_input_t: int | None
    first_answer_t: int | None
    tnft: int | None


@dataclass(frozen=True, slots=True)
class Metrics:
    """Figures of a whole transcript.

    Args:
        rows: how many rows there are.
        tokens: tokens by stream, all copies of it together; every stream is named.
        msl: tokens in the longest lane; copies are lanes of their own.
        turns: figures of each turn.
    """

    rows: int
    tokens: dict[str, int]
    msl: int
    turns: tuple[TurnMetrics, ...]

    @property
    def tnft(self) -> int | None:
        """TNFT of the last turn that has one."""
        return next((turn.tnft for turn in reversed(self.turns) if turn.tnft is not None), None)


def measure(transcript: Transcript) -> Metrics:
    """Return the figures of a transcript; see the module for what they mean."""
    lanes = transcript.lanes.lanes
    by_label = {lane.label: 0 for lane in lanes}
    for row in transcript.rows:
        for label in row.cells:
            by_label[label] += 1
    tokens = dict.fromkeys(transcript.topology.streams, 0)
    for lane in lanes:
        tokens[lane.stream] += by_label[lane.label]
    turns = tuple(_measure_turn(rows, transcript.topology) for rows in transcript.turns())
    return Metrics(len(transcript.rows), tokens, max(by_label.values(), default=0), turns)


def _measure_turn(rows: Sequence[Row], topology: Topology) -> TurnMetrics:
    last_input = first_answer = None  # indices into rows
    for index, row in enumerate(rows):
        for label, cell in row.cells.items():
            spec = topology.streams[label.partition("#")[0]]
            if spec.is_input:
                last_input = index
            elif first_answer is None and spec.visibility == "external" and not cell.forced:
                first_answer = index
    tnft = None
    if last_input is not None and first_answer is not None:
        tnft = max(0, first_answer - last_input - 1)
    return TurnMetrics(
        first_t=rows[0].t,
        rows=len(rows),
        last_input_t=None if last_input is None else rows[last_input].t,
        first_answer_t=None if first_answer is None else rows[first_answer].t,
        tnft=tnft,
    )
