"""What a session reads at its very beginning, which other sessions may have computed already, or may want.

    preamble of views                  shared by itself, turn after turn
    native rows  a a a b b │ …         shared as long as nothing but bursts of input has happened
                 └ path ──┘ └ the first row in which an output takes part ends it

Before something of it is computed, the cache is asked what it has (`Recall`); once it is computed, the cache is told
to keep it (`Keep`).
"""

from __future__ import annotations

from collections.abc import Hashable
from copy import copy
from itertools import islice

from braid.engine.backend import Cell
from braid.engine.session.policy import RowPlan
from braid.engine.session.preamble import Preamble
from braid.engine.session.stage import Stage

__all__ = ["SharedPrefix"]

NEIGHBOURHOOD = 16
"""Tokens by which the beginnings of two sessions are compared."""


class SharedPrefix:
    """How far one session's beginning goes, and what of it the cache is told to keep.

    Args:
        salt: Prefixes are shared with sessions of the same salt only.
        is_open: Whether rows are followed, as of a native session on a backend that shares prefixes.
    """

    def __init__(self, salt: str, *, is_open: bool) -> None:
        self._salt = salt
        self._path: list[Cell] | None = [] if is_open else None
        """Of a native session, all that was read so far, while that is nothing but bursts of input; never changed in
        place, so that copies share it."""
        self._to_keep: list[Cell] | None = None
        """What other sessions may share once it is computed."""
        self.num_cached = 0
        """Tokens that were taken from what other sessions had computed."""

    @property
    def is_open(self) -> bool:
        """Whether more rows may become part of it."""
        return self._path is not None

    def end(self) -> None:
        """No further row is part of it."""
        self._path = None

    def keep_nothing(self) -> None:
        """What is being computed is not there to be kept."""
        self._to_keep = None

    def share_nothing(self) -> None:
        """Neither what is being computed nor what follows is shared."""
        self._path = self._to_keep = None

    # ---- what is computed

    def prefills(self, preamble: Preamble, length: int) -> None:
        """So much of a preamble is there with the next forward."""
        self._to_keep = preamble.cells(length)

    def lengthen(self, rows: RowPlan | None, stage: Stage, t: int) -> None:
        """Follow a native session's beginning as long as nothing but bursts of input happens in it.

        Args:
            rows: Those that are entered next; None for what is none.
            stage: Whose queues they are taken from.
            t: The next row.
        """
        if self._path is None or rows is None:
            self._path = None
            return
        self._path = self._to_keep = self._path + _burst_cells(rows, stage, t)
        if rows.outputs:
            self._path = None

    def take(self) -> list[Cell] | None:
        """What is to be kept, once the forward has computed it."""
        cells, self._to_keep = self._to_keep, None
        return cells

    # ---- what is recalled

    def wanted(self, rows: RowPlan, stage: Stage, t: int) -> list[Cell]:
        """All that the cache would have to have so that nothing of a burst need be computed."""
        assert self._path is not None, "it is open"
        return self._path + _burst_cells(rows, stage, t)

    def recalled(self, rows: RowPlan, found: int, stage: Stage, t: int) -> RowPlan | None:
        """The rows of a burst that the cache has already, which are entered without being computed.

        Only tokens that enter in rows of their own are among them: in the last row of a burst outputs are asked.

        Args:
            rows: The burst.
            found: How much the cache has of what was `wanted`.
            stage, t: As for `lengthen`.
        """
        assert self._path is not None, "it is open"
        found -= len(self._path)
        burst: list[tuple[str, int]] = []
        for label, count in rows.burst:
            burst.append((label, min(count, found - sum(n for _, n in burst))))
        recalled = RowPlan(tuple(part for part in burst if part[1] > 0), (), False)
        if not recalled.burst:
            return None
        self.lengthen(recalled, stage, t)
        self.num_cached += recalled.num_burst
        self._to_keep = None  # it is kept already
        return recalled

    # ---- what comes next of it

    def next_of_preamble(self, preamble: Preamble) -> Hashable:
        """What it computes next of a preamble; see `Conversation.beginning`."""
        kept, ids = preamble.missing(NEIGHBOURHOOD)
        before = preamble.wanted_ids[max(0, kept - NEIGHBOURHOOD) : kept]
        return (self._salt, kept, tuple(before), tuple(ids))

    def next_of_rows(self, rows: RowPlan | None, stage: Stage) -> Hashable | None:
        """What it computes next of a burst; see `Conversation.beginning`."""
        if self._path is None or rows is None or not rows.burst:
            return None
        label, count = rows.burst[0]
        queue = stage.input(label).queue
        coming = tuple(queue[i].token for i in range(min(count, NEIGHBOURHOOD)))
        return (self._salt, label, len(self._path), tuple(self._path[-NEIGHBOURHOOD:]), coming)

    # ---- doubles

    def fork(self) -> SharedPrefix:
        """A second one that goes on by itself."""
        return copy(self)


def _burst_cells(rows: RowPlan, stage: Stage, t: int) -> list[Cell]:
    cells: list[Cell] = []
    for label, count in rows.burst:
        coming = islice(stage.input(label).queue, count)  # a deque is slow to index
        cells += [Cell(step, label, waiting.token) for step, waiting in enumerate(coming, t + len(cells))]
    return cells
