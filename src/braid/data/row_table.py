"""The row table: which token stands in which row of which stream, and where the model is asked to decide.

It is what training reads, and stays sparse: a silent slot is not there. As JSON, one example a line:

    {"id": "s-17", "num_rows": 21, "meta": {"answer": "7"},
     "lanes": [
       {"stream": "user",    "rows": [0, 1, 2, …], "ids": [412, 33, …], "asked": [],        "weight": 0.0},
       {"stream": "thought", "rows": [6, 7, …],    "ids": [19, …],      "asked": [[0, 20]], "weight": 1.0}]}

`asked` holds the half-open ranges of rows in which an output is awake: there, its query (the token that it says in the
row, or a probe where it is silent) is asked what it says in the next row. What it then says, a token or silence, is the
label. Rows of a burst are not asked, nor is a stream that has not begun or has ended.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Lane", "RowTable", "ranges_of"]


@dataclass(frozen=True, slots=True)
class Lane:
    """One stream of an example.

    Args:
        stream: Its name.
        rows: The row of each token, rising strictly.
        ids: The tokens, as many.
        asked: Half-open ranges of rows in which it is asked for its next token, in order; an input has none.
        weight: Of its loss.
    """

    stream: str
    rows: Sequence[int]
    ids: Sequence[int]
    asked: Sequence[tuple[int, int]] = ()
    weight: float = 1.0

    @property
    def asked_rows(self) -> set[int]:
        """The rows in which it is asked."""
        return {row for start, stop in self.asked for row in range(start, stop)}

    def is_asked_in(self, row: int) -> bool:
        """Whether it is asked in a row; a range may be as long as a file says, and is not counted through."""
        place = bisect_right(self.asked, row, key=lambda each: each[0]) - 1
        return place >= 0 and row < self.asked[place][1]

    @property
    def num_asked(self) -> int:
        """Rows in which it is asked."""
        return sum(stop - start for start, stop in self.asked)


@dataclass(frozen=True, slots=True)
class RowTable:
    """One example in rows.

    Args:
        id: Of the example.
        num_rows: Every one of them has a token.
        lanes: In the order of the topology's streams; a stream that is not named is closed.
        meta: JSON.
    """

    id: str
    num_rows: int
    lanes: tuple[Lane, ...]
    meta: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def lane(self, stream: str) -> Lane | None:
        """The lane of a stream, if it has one."""
        return next((lane for lane in self.lanes if lane.stream == stream), None)

    @property
    def num_tokens(self) -> int:
        """Kept tokens."""
        return sum(len(lane.ids) for lane in self.lanes)

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "id": self.id,
            "num_rows": self.num_rows,
            "lanes": [
                {
                    "stream": lane.stream,
                    "rows": list(lane.rows),
                    "ids": list(lane.ids),
                    "asked": [list(each) for each in lane.asked],
                    "weight": lane.weight,
                }
                for lane in self.lanes
            ],
            "meta": dict(self.meta),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> RowTable:
        """Of plain data; what is in it is not checked, see `braid.data.check`."""
        lanes = tuple(
            Lane(
                lane["stream"],
                lane["rows"],
                lane["ids"],
                tuple((start, stop) for start, stop in lane["asked"]),
                lane["weight"],
            )
            for lane in data["lanes"]
        )
        return cls(data["id"], data["num_rows"], lanes, data.get("meta") or {})


def ranges_of(rows: Iterable[int]) -> tuple[tuple[int, int], ...]:
    """Rows as half-open ranges.

    >>> ranges_of([7, 2, 3, 4])
    ((2, 5), (7, 8))
    """
    ranges: list[tuple[int, int]] = []
    for row in sorted(rows):
        if ranges and ranges[-1][1] == row:
            ranges[-1] = (ranges[-1][0], row + 1)
        else:
            ranges.append((row, row + 1))
    return tuple(ranges)
