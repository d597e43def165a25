"""What the next rows are made of: a pure function of the queues, so that any worker decides alike.

Input that is `paced` enters one token a stream and row, so that the model thinks along. Input that comes in a
`burst` enters all at once, in consecutive rows, one stream after another, those of higher priority first, else in the
order of the topology; outputs are silent and unprobed meanwhile, and join in the burst's last row. A paced input
whose backlog is overdue comes in a burst too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

__all__ = ["Backlog", "RowPlan", "next_rows"]


class Backlog(NamedTuple):
    """Tokens that wait to enter one input stream."""

    label: str
    queued: int
    feed: Literal["paced", "burst"]
    rank: int = 1
    """0 for high priority, 1 for medium, 2 for low."""


class RowPlan(NamedTuple):
    """The next rows: first those of the burst, a stream after another; then, if `outputs`, one shared row."""

    burst: tuple[tuple[str, int], ...]
    """How many tokens of which stream enter in rows of their own."""
    row: tuple[str, ...]
    """The input streams that give one token to the last row."""
    outputs: bool
    """Whether outputs join in the last row; False when a burst is cut by the budget and goes on."""

    @property
    def num_rows(self) -> int:
        """How many rows."""
        return self.num_burst + int(self.outputs)

    @property
    def num_burst(self) -> int:
        """How many tokens enter in rows of their own."""
        return sum(count for _, count in self.burst)

    def count(self, label: str) -> int:
        """Tokens that enter the stream."""
        return sum(count for name, count in self.burst if name == label) + int(label in self.row)


def next_rows(backlogs: Sequence[Backlog], *, is_speaking: bool, budget: int) -> RowPlan | None:
    """Decide what enters next.

    Args:
        backlogs: Of each input stream, in the order of the topology.
        is_speaking: Whether an output has a token for the next row.
        budget: New input tokens that one forward may take.

    Returns:
        None when nothing is queued and nobody speaks: then there is no row.

    >>> next_rows([Backlog("user", 3, "burst")], is_speaking=True, budget=512)
    RowPlan(burst=(('user', 2),), row=('user',), outputs=True)
    """
    waiting = [b for b in backlogs if b.feed == "burst" and b.queued]
    queued = [(b.label, b.queued) for b in sorted(waiting, key=lambda b: b.rank)]
    paced = tuple(b.label for b in backlogs if b.feed == "paced" and b.queued)
    if not queued:
        return RowPlan((), paced, True) if paced or is_speaking else None
    burst: list[tuple[str, int]] = []
    for label, count in queued:
        taken = min(count, budget)
        budget -= taken
        if taken:
            burst.append((label, taken))
        if taken < count:
            return RowPlan(tuple(burst), (), False)
    last, count = burst.pop()
    if count > 1:
        burst.append((last, count - 1))
    order = [b.label for b in backlogs]
    row = tuple(sorted((*paced, last), key=order.index))
    return RowPlan(tuple(burst), row, True)
