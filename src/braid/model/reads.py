"""Who reads what: span reads, and the same thing flat, one entry for each query of each read.

    SpanRead   queries 2 and 3 of the forward read tokens 0 … 17 of a page list, with shift 5
    Entries    query 2 · list 0 · 0 … 17 · 5
               query 3 · list 0 · 0 … 17 · 5

A forward of many sessions has a thousand entries and is planned in a few milliseconds: what follows from them is worked
out for all of them at once, in numpy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from braid.cache import PageList

__all__ = ["Bools", "Entries", "Ints", "ReadTable", "SpanRead", "starts_of"]

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

_FAR = 1 << 40
"""More than the distance of any two positions of one list."""


@dataclass(frozen=True)
class SpanRead:
    """Queries of one lane read one span, each its own range of it."""

    queries: Ints
    """Indices of new tokens in the batch, `[n]`."""
    pages: PageList
    """The list that the span lies in."""
    positions: Ints
    """Stored positions of the list's tokens, ascending; new ones included."""
    start: Ints
    """First token that each query reads, an index in the list, `[n]`."""
    stop: Ints
    """One past the last, `[n]`; a query with `stop <= start` reads nothing here."""
    shifts: Ints
    """Shift of each query's own span less the shift of this one, in its view: how far it is rotated to read, `[n]`."""
    stride: int = 1
    """With `stride > 1`, only the tokens whose distance in position leaves `offset` are read."""
    offset: int = 0
    own: bool = False
    """The span is the queries' own stream's, where a token reads itself whatever the pattern."""


@dataclass(frozen=True)
class Entries:
    """Reads taken apart: one entry for each query of each read that reads anything."""

    queries: Ints
    """Indices of new tokens, `[E]`."""
    reads: Ints
    """Indices of reads, `[E]`."""
    lists: Ints
    """Indices of page lists, `[E]`."""
    start: Ints
    """First token of the list that is read, `[E]`."""
    stop: Ints
    """One past the last."""
    shifts: Ints

    def that_read(self) -> Entries:
        """Without those that read nothing."""
        keep = self.stop > self.start
        if keep.all():
            return self
        return Entries(*(getattr(self, field.name)[keep] for field in fields(self)))


class ReadTable:
    """The reads of one forward, their entries, and the pages of their lists.

    Args:
        reads: Who reads what.
        positions: Stored position of each new token, `[N]`.
        page_size: Tokens a page.
    """

    def __init__(self, reads: Sequence[SpanRead], positions: Ints, page_size: int) -> None:
        self.reads = reads
        self.positions = positions
        self.page_size = page_size
        self.strides = np.array([read.stride for read in reads], dtype=np.int64)
        lists: dict[PageList, int] = {}
        self._list_of_read = [lists.setdefault(read.pages, len(lists)) for read in reads]
        self.num_lists = len(lists)
        read_of_entry = np.repeat(np.arange(len(reads)), [len(read.queries) for read in reads])
        self.entries = Entries(
            queries=_joined([read.queries for read in reads]),
            reads=read_of_entry,
            lists=np.asarray(self._list_of_read, dtype=np.int64)[read_of_entry],
            start=_joined([read.start for read in reads]),
            stop=_joined([read.stop for read in reads]),
            shifts=_joined([read.shifts for read in reads]),
        ).that_read()
        self.pages: Ints = np.fromiter(chain.from_iterable(pages.pages for pages in lists), dtype=np.int64)
        """The pages of all lists, one list after another."""
        self.first_page = starts_of(np.array([len(pages.pages) for pages in lists], dtype=np.int64))
        """Where in `pages` those of each list begin."""

    @cached_property
    def list_positions(self) -> tuple[Ints, Ints]:
        """Stored positions of all lists' tokens, one list after another; and where those of each list begin."""
        by_list = dict(zip(self._list_of_read, self.reads, strict=True))
        positions = [by_list[index].positions for index in range(self.num_lists)]
        return _joined(positions), starts_of(np.array([len(own) for own in positions], dtype=np.int64))

    def within(self, window: int | None) -> Entries:
        """The entries of layers with this window."""
        entries = self.entries
        if window is None or not len(entries.queries):
            return entries
        positions, begin = self.list_positions
        of_position = np.repeat(np.arange(self.num_lists), np.diff(begin, append=len(positions)))
        oldest = self.positions[entries.queries] + entries.shifts - window
        # One search in the lists of all sessions, which are set so far apart that each stays within its own.
        found = np.searchsorted(
            positions + _FAR * of_position, oldest + _FAR * entries.lists, side="right"
        ).astype(np.int64)
        start = np.maximum(entries.start, found - begin[entries.lists])
        return replace(entries, start=start).that_read()


def starts_of(lengths: Ints) -> Ints:
    """Where stretches of these lengths begin when they lie one after another."""
    return np.cumsum(lengths) - lengths


def _joined(arrays: Sequence[Ints]) -> Ints:
    return np.concatenate(arrays) if arrays else np.empty(0, dtype=np.int64)
